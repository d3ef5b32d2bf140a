"""Why saved blocks do not fit another number of runners."""

from __future__ import annotations

from enn_ppo.training.sampling import blocks_problem


def test_why_blocks_of_another_number_of_runners_do_not_fit() -> None:
    saved = {"episodes": {"lengths": [3, 0, 5, 2]}}
    problem = blocks_problem([saved], 2, "distributed.num_env_runners makes")
    assert (
        problem == "the checkpoint has them in 1 block of 4 (rollout.block=4), and distributed.num_env_runners makes 2"
    )
    assert blocks_problem([None, None], 1) == "the checkpoint has them in 2 blocks, and rollout.block makes 1"
    assert (
        blocks_problem([{}, None], 2)
        == "some of them were playing, or being started again, when the checkpoint was written"
    )
    assert blocks_problem([{}, {}], 2) is None
