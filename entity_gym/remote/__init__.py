"""Worlds of programs in any language, by a small protocol: docs/protocol.md."""

from entity_gym.remote.environment import ProgramWorlds, RemoteEnvironment, program_worlds
from entity_gym.remote.messages import PROTOCOL, ProtocolError
from entity_gym.remote.program import Program, ProgramError
from entity_gym.remote.settings import ProgramSettings

__all__ = [
    "PROTOCOL",
    "Program",
    "ProgramError",
    "ProgramSettings",
    "ProgramWorlds",
    "ProtocolError",
    "RemoteEnvironment",
    "program_worlds",
]
