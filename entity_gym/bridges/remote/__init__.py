"""Worlds of programs in any language, by a small protocol: docs/protocol.md."""

from entity_gym.bridges.remote.messages import PROTOCOL, ProtocolError
from entity_gym.bridges.remote.program import ProgramError, ProgramWorlds

__all__ = ["PROTOCOL", "ProgramError", "ProgramWorlds", "ProtocolError"]
