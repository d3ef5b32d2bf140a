"""A test kit for your own environment: `python -m entity_gym.check my_pkg.my_env:MyEnv`."""

from entity_gym.check.checks import check_environment
from entity_gym.check.report import Outcome, Report, Result, Status

__all__ = ["Outcome", "Report", "Result", "Status", "check_environment"]
