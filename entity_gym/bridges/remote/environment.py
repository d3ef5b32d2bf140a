"""Environments that run in another program: one in a program of its own, or all those of a pool in one program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from entity_gym.actions import Action, ActionSpace
from entity_gym.bridges.remote.connection import ProgramSettings
from entity_gym.bridges.remote.messages import ProtocolError
from entity_gym.bridges.remote.program import Program
from entity_gym.bridges.remote.wire import actions_to_json, observation_from_json
from entity_gym.environment import Environment, Observation
from entity_gym.errors import nearest
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import EnvIds, SlotOptions
from entity_gym.pools.source import EnvSource
from entity_gym.spaces import ObsSpace

#: Seeds for programs are below this: integers of 32 bits, which every language has.
SEEDS = 2**32


class RemoteEnvironment(Environment):
    """One world of a program. Raises a `ProgramError` (a `ValueError`) that names the program if it fails.

    Args:
        program: the program.
        world: the world's number there.
        owns_program: closing this environment ends the program.
    """

    def __init__(self, program: Program, world: int = 0, *, owns_program: bool = True) -> None:
        self._program, self._world, self._owns_program = program, world, owns_program
        self.display_name = program.name  # in messages of pools
        self._parameters: dict[str, Any] = {}
        self._reset_begun = False

    def obs_space(self) -> ObsSpace:
        return self._program.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._program.action_space

    def reseed(self, seed: int, number: int) -> None:
        super().reseed(seed, number)
        self._reset_begun = False  # with the old seed

    def configure(self, info: Mapping[str, Any]) -> None:
        """Set parameters of the coming episodes.

        Raises:
            ValueError: the program does not know a parameter.
        """
        for name in info:
            if name not in self._program.parameters:
                raise ValueError(
                    f"{self._program.name} takes no parameter {name!r}; {nearest(name, self._program.parameters)}"
                )
        self._parameters = {**self._parameters, **info}
        self._reset_begun = False  # with the old parameters

    def reset(self) -> Observation:
        """Start an episode with a seed drawn from `rng`; after `begin_reset`, wait for its first observation."""
        if not self._reset_begun:
            self.begin_reset()
        self._reset_begun = False
        obs = self.receive()
        if obs.done:
            self._program.fail(
                f"answered 'reset' of world {self._world} with done=true; the first observation of an episode is not done"
            )
        return obs

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.begin_act(actions)
        return self.receive()

    def begin_reset(self) -> None:
        """Ask the world for a new episode, without waiting."""
        info = {"info": self._parameters} if self._parameters else {}
        self._program.ask(self._world, {"type": "reset", "seed": int(self.rng.integers(SEEDS)), **info})
        self._reset_begun = True

    def begin_act(self, actions: Mapping[str, Action]) -> None:
        """Ask the world for a step, without waiting."""
        told = actions_to_json(actions, self._program.action_space)
        self._program.ask(self._world, {"type": "act", "actions": told})

    def receive(self) -> Observation:
        """Wait for the observation that was asked for."""
        answer = self._program.answer(self._world)
        try:
            return observation_from_json(answer, self._program.action_space)
        except ProtocolError as error:
            self._program.fail(f"sent an invalid observation of world {self._world}: {error}")

    def can_save(self) -> bool:  # type: ignore[override]  # depends on the program, and not on the class
        return self._program.can_save

    def state(self) -> dict[str, Any]:
        """Return the program's state of this world, and the parameters of coming episodes."""
        if not self._program.can_save:
            return super().state()
        self._program.ask(self._world, {"type": "save"})
        return {"world": self._program.answer(self._world).get("state"), "parameters": self._parameters}

    def load_state(self, state: Mapping[str, Any]) -> None:
        if not self._program.can_save:
            super().load_state(state)
        self._parameters = dict(state["parameters"])
        self._reset_begun = False
        self._program.ask(self._world, {"type": "load", "state": state["world"]})
        self._program.answer(self._world)

    def close(self) -> None:
        if self._owns_program:
            self._program.close()


@dataclass(frozen=True)
class ProgramWorlds(EnvSource):
    """Makes environments of a program's worlds: pools take it in place of an environment's class.

    A pool starts one program for all its environments, and one for each worker process.

    Attributes:
        settings: how to reach the program.
    """

    settings: ProgramSettings

    def as_environment(self) -> RemoteEnvironment:
        return RemoteEnvironment(Program(self.settings, num_worlds=1))

    def make_slots(self, num_envs: int, options: SlotOptions = SlotOptions()) -> RemoteSlots:
        return RemoteSlots(self.settings, num_envs, options)


class RemoteSlots(PythonSlots):
    """Slots for the worlds of one program, which all take their step at the same time; options as for `PythonSlots`."""

    envs: list[RemoteEnvironment]  # type: ignore[assignment]

    def __init__(self, settings: ProgramSettings, num_envs: int, options: SlotOptions = SlotOptions()) -> None:
        self._settings = settings
        self._program = program = Program(settings, num_envs)
        worlds = iter(range(num_envs))
        try:
            super().__init__(lambda: RemoteEnvironment(program, next(worlds), owns_program=False), num_envs, options)
        except BaseException:
            program.close()
            raise

    def reset(self, ids: EnvIds, worker: int = 0) -> None:
        for i in ids.tolist():
            self._begin_reset(i)
        super().reset(ids, worker)

    def close(self) -> None:
        self._program.close()

    def _act(self, ids: list[int], actions: list[dict[str, Action]]) -> Iterable[Observation]:
        for i, told in zip(ids, actions, strict=True):
            self.envs[i].begin_act(told)
        observations = []
        for i in ids:
            obs = self._call(i, self.envs[i].receive)
            if obs.done and self.options.autoreset:  # the program resets this world while the others are waited for
                self._begin_reset(i)
            observations.append(obs)
        return observations

    def _begin_reset(self, i: int) -> None:
        if self._pending[i] is None:  # otherwise the environment is first configured
            self.envs[i].begin_reset()

    def _another(self) -> RemoteSlots:
        return RemoteSlots(self._settings, len(self), self.options)


def program_worlds(name: str = "program", **settings: Any) -> ProgramWorlds:
    """Return a factory of environments from a program's worlds: `program_worlds(command=["node", "world.mjs"])`.

    Args:
        name: the program's name in messages.
        settings: the other attributes of `ProgramSettings`.

    Raises:
        ValueError: a setting is unknown or invalid.
    """
    known = [field.name for field in fields(ProgramSettings) if field.name != "name"]
    for given in settings:
        if given not in known:
            raise ValueError(f"{given!r} is no setting of a program; {nearest(given, known)}")
    return ProgramWorlds(ProgramSettings(name=name, **settings))
