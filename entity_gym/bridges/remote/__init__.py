"""Worlds of programs in any language, by a small protocol: docs/protocol.md."""

from entity_gym.bridges.remote.connection import ProgramError, ProgramSettings
from entity_gym.bridges.remote.environment import ProgramWorlds, RemoteEnvironment, program_worlds
from entity_gym.bridges.remote.messages import PROTOCOL, ProtocolError
from entity_gym.bridges.remote.program import Program

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
