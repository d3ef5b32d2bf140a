"""Environments in plain Python at native speed: three functions over a record, compiled, ragged and seeded."""

from entity_gym.compiled.declare import Categorical, Continuous, Entity, GlobalCategorical, SelectEntities, SelectEntity
from entity_gym.compiled.environment import CompiledEnvironment
from entity_gym.compiled.explain import CompileError
from entity_gym.compiled.random import kernel, new_id, rand_float, rand_int, rand_normal

__all__ = [
    "Categorical",
    "CompileError",
    "CompiledEnvironment",
    "Continuous",
    "Entity",
    "GlobalCategorical",
    "SelectEntities",
    "SelectEntity",
    "kernel",
    "new_id",
    "rand_float",
    "rand_int",
    "rand_normal",
]
