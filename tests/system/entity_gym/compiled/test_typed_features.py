"""Categories, angles and flags, checked by compiled code."""

import pytest

from tests.entity_gym.compiled.test_typed_features import REFUSED, check_refusal


@pytest.mark.parametrize(("parameter", "value", "wrong"), REFUSED)
def test_compiled_code_refuses_what_ordinary_python_refuses(parameter: str, value: float, wrong: str) -> None:
    check_refusal(parameter, value, wrong, compile=True)
