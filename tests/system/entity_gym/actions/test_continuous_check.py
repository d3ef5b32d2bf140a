"""The check of environments tries numbers that are not allowed."""

from entity_gym.check import check_environment
from tests.entity_gym.actions.harbour import Harbour


def test_the_check_tries_numbers_that_are_not_allowed() -> None:
    report = check_environment(Harbour, steps=25)
    assert report.ok, report.failed
    (refused,) = (result.text for result in report.results if result.name == "refused actions")
    assert "a number out of bounds" in refused and "a number that is not finite" in refused
