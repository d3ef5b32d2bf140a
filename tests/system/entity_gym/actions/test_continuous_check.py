"""The check of environments tries numbers that are not allowed."""

from entity_gym.check import check_environment
from entity_gym.check.subject import Effort
from tests.entity_gym.actions.harbour import Harbour


def test_the_check_tries_numbers_that_are_not_allowed() -> None:
    effort = Effort(steps=25, seconds=None, longest_episode=300, timed_seconds=0.01)
    report = check_environment(Harbour, effort=effort)
    assert report.ok, report.failed
    (refused,) = (result.text for result in report.results if result.name == "wrong actions")
    assert "a number out of bounds" in refused and "a number that is not finite" in refused
