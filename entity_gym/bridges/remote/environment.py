"""Worlds of another program as environments, alone or many of one program side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from entity_gym.actions import Action, ActionSpace
from entity_gym.bridges.remote.messages import Message, ProtocolError
from entity_gym.bridges.remote.program import Program
from entity_gym.bridges.remote.settings import ProgramSettings
from entity_gym.bridges.remote.wire import actions_to_json, observation_from_json
from entity_gym.environment import Environment, Observation
from entity_gym.errors import nearest
from entity_gym.pools.python_slots import PythonSlots
from entity_gym.pools.slots import EnvIds, FinalObservations
from entity_gym.spaces import ObsSpace

#: Seeds that a program is given are below this: whole numbers of 32 bits, which every language has.
SEEDS = 2**32


class RemoteEnvironment(Environment):
    """World number `world` of a program.

    A program that fails in any way is a `ProgramError` (a `ValueError`) that names it; see `entity_gym.bridges.remote.program`.

    Args:
        program: whose.
        world: its number there.
        owns_program: whether closing this environment ends the program.
    """

    def __init__(self, program: Program, world: int = 0, *, owns_program: bool = True) -> None:
        self._program, self._world, self._owns_program = program, world, owns_program
        self.display_name = program.name  # how a pool's messages name it
        self._parameters: dict[str, Any] = {}
        self._begun = ""  # what has been asked and not answered

    def obs_space(self) -> ObsSpace:
        """What the program said."""
        return self._program.spaces.obs_space

    def action_space(self) -> Mapping[str, ActionSpace]:
        """What the program said."""
        return self._program.spaces.action_space

    def reset(self) -> Observation:
        """Start an episode, with a seed that is drawn from `rng`."""
        self.begin_reset()
        obs = self._observation()
        if obs.done:
            self._program.refuse(
                f"answered 'reset' of world {self._world} with an observation that is done: a game begins"
            )
        return obs

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Take one step; where `begin_act` has been called, only wait for what came of it."""
        self.begin_act(actions)
        return self._observation()

    def begin_reset(self) -> None:
        """Ask for an episode; `reset` then waits for it. Again: nothing."""
        if self._begun != "reset":
            info = {"info": self._parameters} if self._parameters else {}
            self._ask({"type": "reset", "seed": int(self.rng.integers(SEEDS)), **info})

    def begin_act(self, actions: Mapping[str, Action]) -> None:
        """Ask for a step; `act` then waits for it. Again: nothing."""
        if self._begun != "act":
            self._ask({"type": "act", "actions": actions_to_json(actions)})

    def configure(self, info: Mapping[str, Any]) -> None:
        """Have the coming episodes begin with these parameters.

        Raises:
            ValueError: the program has said that it does not know one.
        """
        for name in info:
            if name not in self._program.parameters:
                raise ValueError(
                    f"{self._program.name} takes no parameter {name!r}; {nearest(name, self._program.parameters)}"
                )
        self._parameters = {**self._parameters, **info}

    def close(self) -> None:
        """End the program, where this environment has it for itself."""
        if self._owns_program:
            self._program.close()

    def _ask(self, message: Message) -> None:
        self._program.ask(self._world, message)
        self._begun = message["type"]

    def _answer(self, kind: str) -> Message:
        self._begun = ""
        return self._program.answer(self._world, kind)

    def _observation(self) -> Observation:
        answer = self._answer("observation")
        try:
            return observation_from_json(answer, self._program.spaces.action_space)
        except ProtocolError as error:
            self._program.refuse(f"sent an observation that cannot be, of world {self._world}: {error}")
            raise AssertionError from None


class SavableRemoteEnvironment(RemoteEnvironment):
    """One whose program says that its worlds can be saved."""

    def state(self) -> dict[str, Any]:
        """What the program says, and the parameters of coming episodes."""
        self._ask({"type": "save"})
        return {"world": self._answer("saved").get("state"), "parameters": self._parameters}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Have the program continue from what it said."""
        self._parameters = dict(state["parameters"])
        self._ask({"type": "load", "state": state["world"]})
        self._answer("loaded")


@dataclass(frozen=True)
class ProgramWorlds:
    """Makes environments that are worlds of another program: pools take it wherever they take an environment's class.

    A pool has one program for all its environments, and with worker processes each of them has one. All of them take their
    step at the same time, as far as the program can do that.

    Attributes:
        settings: how the program is reached.
    """

    settings: ProgramSettings

    def __call__(self) -> RemoteEnvironment:
        """One environment with a program for itself."""
        return _environment(Program(self.settings, num_worlds=1), 0, owns_program=True)

    def make_slots(
        self, num_envs: int, *, first_env: int, autoreset: bool, final_observations: FinalObservations
    ) -> RemoteSlots:
        """Several, of one program; arguments as in `PythonSlots`."""
        return RemoteSlots(
            self.settings, num_envs, first_env=first_env, autoreset=autoreset, final_observations=final_observations
        )


class RemoteSlots(PythonSlots):
    """Worlds of one program, which all take their step at the same time; arguments as in `PythonSlots`."""

    envs: list[RemoteEnvironment]  # type: ignore[assignment]

    def __init__(
        self,
        settings: ProgramSettings,
        num_envs: int,
        *,
        first_env: int = 0,
        autoreset: bool = True,
        final_observations: FinalObservations = "truncated",
    ) -> None:
        self._settings = settings
        self._program = Program(settings, num_envs)
        try:
            super().__init__(
                _numbered(self._program),
                num_envs,
                first_env=first_env,
                autoreset=autoreset,
                final_observations=final_observations,
            )
        except BaseException:
            self._program.close()
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
        shown = []
        for i, told in zip(ids, actions, strict=True):
            obs = self._call(i, self.envs[i].act, told)
            if obs.done and self.autoreset:
                self._begin_reset(i)
            shown.append(obs)
        return shown

    def _begin_reset(self, i: int) -> None:
        if self._pending[i] is None:  # what was told for the coming episode comes first
            self.envs[i].begin_reset()

    def _another(self) -> RemoteSlots:
        return RemoteSlots(
            self._settings,
            len(self),
            first_env=self.first_env,
            autoreset=self.autoreset,
            final_observations=self.final_observations,
        )


def program_worlds(name: str = "program", **settings: Any) -> ProgramWorlds:
    """What makes environments of the worlds that a program offers: `program_worlds(command=["node", "world.mjs"])`.

    Args:
        name: what messages call the program.
        settings: how it is reached: the other attributes of `ProgramSettings`.

    Raises:
        ValueError: for an argument that is none, or a value that cannot be.
    """
    known = [field.name for field in fields(ProgramSettings) if field.name != "name"]
    for given in settings:
        if given not in known:
            raise ValueError(f"{given!r} is no setting of a program; {nearest(given, known)}")
    return ProgramWorlds(ProgramSettings(name=name, **settings))


def _environment(program: Program, world: int, *, owns_program: bool) -> RemoteEnvironment:
    kind = SavableRemoteEnvironment if program.can_save else RemoteEnvironment
    return kind(program, world, owns_program=owns_program)


def _numbered(program: Program) -> Callable[[], RemoteEnvironment]:
    """Makes the environments of a program, one world after the other."""
    worlds = iter(range(2**63))
    return lambda: _environment(program, next(worlds), owns_program=False)
