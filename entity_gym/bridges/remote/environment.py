"""Environments that run in another program: one in a program of its own, or all those of a pool in one program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from entity_gym.actions import Action, ActionSpace
from entity_gym.bridges.remote.connection import ProgramSettings
from entity_gym.bridges.remote.messages import Message, ProtocolError
from entity_gym.bridges.remote.program import Program
from entity_gym.bridges.remote.wire import actions_to_json, observation_from_json
from entity_gym.environment import Environment, Observation
from entity_gym.errors import nearest
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import SlotOptions
from entity_gym.pools.source import EnvSource
from entity_gym.spaces import ObsSpace

#: Seeds for programs are below this: integers of 32 bits, which every language has.
SEEDS = 2**32


class RemoteEnvironment(Environment):
    """One world of a program. Raises a `ProgramError` (a `ValueError`) that names the program if it fails.

    Args:
        program: the program. Closing one of its environments ends it.
        world: the world's number there.
    """

    def __init__(self, program: Program, world: int) -> None:
        self._program, self._world = program, world
        self.display_name = program.name  # in messages of pools
        self._parameters: dict[str, Any] = {}
        self._is_asked = False  # whether `begin` has sent the request that `reset` or `act` waits for

    def obs_space(self) -> ObsSpace:
        return self._program.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        return self._program.action_space

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

    def begin(self, actions: Mapping[str, Action] | None) -> None:
        """Ask the world for a step, or with None for an episode with a seed drawn from `rng`."""
        request: Message
        if actions is None:
            info = {"info": self._parameters} if self._parameters else {}
            request = {"type": "reset", "seed": int(self.rng.integers(SEEDS)), **info}
        else:
            request = {"type": "act", "actions": actions_to_json(actions, self._program.action_space)}
        self._program.ask(self._world, request)
        self._is_asked = True

    def reset(self) -> Observation:
        obs = self._answer(None)
        if obs.done:
            self._program.fail(
                f"answered 'reset' of world {self._world} with done=true; the first observation of an episode is not done"
            )
        return obs

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return self._answer(actions)

    def _answer(self, actions: Mapping[str, Action] | None) -> Observation:
        """Wait for the observation of a step or, with None, of an episode."""
        if not self._is_asked:
            self.begin(actions)
        self._is_asked = False
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
        self._program.ask(self._world, {"type": "load", "state": state["world"]})
        self._program.answer(self._world)

    def close(self) -> None:
        self._program.close()


class ProgramWorlds(ProgramSettings, EnvSource):
    """Makes environments of a program's worlds: pools take it in place of an environment's class.

    A pool starts one program for all its environments, and one for each worker process. Attributes as of `ProgramSettings`.
    """

    def as_environment(self) -> RemoteEnvironment:
        return RemoteEnvironment(Program(self, num_worlds=1), 0)

    def make_slots(self, num_envs: int, options: SlotOptions = SlotOptions()) -> PythonSlots:
        """Make the worlds of one program, and of another one for a copy of the slots."""

        def worlds() -> Iterator[Environment]:
            while True:
                program = Program(self, num_envs)
                for world in range(num_envs):
                    yield RemoteEnvironment(program, world)

        return PythonSlots(worlds().__next__, num_envs, options)


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
    return ProgramWorlds(name=name, **settings)
