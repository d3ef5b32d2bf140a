"""Checkpoints of enn-trainer, this project's ancestor, as runs that can be evaluated and trained further."""

from enn_ppo.convert.convert import ConvertResult, convert_checkpoint

__all__ = ["ConvertResult", "convert_checkpoint"]
