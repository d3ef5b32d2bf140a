from collections import Counter
from itertools import product

import pytest

from entity_gym.envs.xor import Xor
from tests.entity_gym.envs.playing import act, resets, rows, started


@pytest.mark.parametrize(
    ("bits", "negate", "right"),
    [
        ((0, 0), 0, "0"),
        ((0, 1), 0, "1"),
        ((1, 0), 0, "1"),
        ((1, 1), 0, "0"),
        ((0, 0), 1, "1"),
        ((0, 1), 1, "0"),
        ((1, 0), 1, "0"),
        ((1, 1), 1, "1"),
    ],
)
def test_the_right_output_is_the_exclusive_or_unless_it_is_to_be_negated(
    bits: tuple[int, int], negate: int, right: str
) -> None:
    for output in "01":
        env = started(Xor, bits=bits, negate=negate)
        obs = env.observe()
        assert rows(obs, "Input") == [[bits[0]], [bits[1]]] and list(obs.global_features) == [negate]
        obs = act(env, output=output)
        assert obs.reward == (1.0 if output == right else 0.0)
        assert obs.done and not obs.truncated


def test_all_eight_questions_are_equally_likely() -> None:
    asked = Counter((*env.record.bits.tolist(), int(env.record.negate)) for env in resets(Xor, 1600))
    assert asked == {question: pytest.approx(200, abs=65) for question in product((0, 1), repeat=3)}


def test_the_drawing_shows_the_bits_and_then_whether_the_output_was_right() -> None:
    env = started(Xor, bits=(1, 0), negate=1)
    act(env, output="0")
    image = env.render()
    assert image.shape == (33, 129, 3)
    colours = [image[16, 32 * x + 16].tolist() for x in range(4)]
    assert colours == [[255, 255, 255], [40, 40, 44], [230, 150, 40], [30, 150, 90]]
