"""Let a trained policy of Skirmish fight a script at several sizes, and count victories, defeats and draws.

python scripts/skirmish_games.py out/skirmish
python scripts/skirmish_games.py out/skirmish --sizes 32 --games 200 --opponent 2 --greedy

Each game is an episode of `python -m enn_ppo.eval` with `env_kwargs.num_units` and `env_kwargs.opponent`. The games of a row are
shared among its sizes: 3 to 8 units are the sizes that the preset trains with, and 32 is one that it never sees.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from enn_ppo import EvalConfig, evaluate

TRAINED, UNSEEN = (3, 4, 5, 6, 7, 8), (32,)


def play(
    checkpoint: Path, sizes: Sequence[int], games: int, opponent: int, greedy: bool, seed: int
) -> tuple[int, int, int]:
    """Return (games, victories, defeats) over all sizes."""
    won = lost = played = 0
    for i, size in enumerate(sizes):
        share = games // len(sizes) + (i < games % len(sizes))
        kwargs = {"num_units": size, "opponent": opponent}
        config = EvalConfig(checkpoint=str(checkpoint), episodes=share, env_kwargs=kwargs, greedy=greedy, seed=seed + i)
        with redirect_stdout(StringIO()):  # estimates of each size
            episodes = evaluate(config).episodes
        for episode in episodes:
            played += 1
            won += int(episode.info["won"])
            lost += int(episode.info["lost"])
    return played, won, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="run directory or checkpoint")
    parser.add_argument(
        "--sizes", nargs="+", type=int, help="units of an army, in one row; default: rows 3 to 8, and 32"
    )
    parser.add_argument("--games", type=int, default=500, help="of each row")
    parser.add_argument("--opponent", type=int, default=3, choices=(1, 2, 3), help="the script")
    parser.add_argument("--greedy", action="store_true", help="the likeliest action instead of a sampled one")
    parser.add_argument("--seed", type=int, default=8_000_000)
    given = parser.parse_args()
    print("| units of an army | games | won | lost | drawn |\n|---|---|---|---|---|")
    for sizes in [given.sizes] if given.sizes else (TRAINED, UNSEEN):
        played, won, lost = play(given.checkpoint, sizes, given.games, given.opponent, given.greedy, given.seed)
        share = won / played
        interval = 1.96 * math.sqrt(share * (1 - share) / played)
        name = str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        print(
            f"| {name} | {played} | {share:.1%} ± {interval:.1%} | {lost / played:.1%} | {1 - (won + lost) / played:.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
