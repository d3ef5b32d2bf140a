"""Find out what is wrong with an environment: `python -m entity_gym.check my_pkg.my_env:MyEnv`."""

from entity_gym.check.checks import Report, Result, Status, check_environment

__all__ = ["Report", "Result", "Status", "check_environment"]
