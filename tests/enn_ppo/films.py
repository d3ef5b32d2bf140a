"""Looking at films: the brightness of their pictures."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as imageio
import numpy as np

from enn_ppo.eval.video import BACKGROUND, TITLE_IMAGES

#: Brightness of the title of an episode.
TITLE = float(np.mean(BACKGROUND))


def brightness(file: Path) -> list[float]:
    """The brightness of each picture, by its upper left corner, where neither captions nor the letters of titles are."""
    how = {"plugin": "FFMPEG"} if file.suffix == ".mp4" else {}
    return [float(frame[:16, :16].mean()) for frame in imageio.imread(file, index=None, **how)]


def titles(file: Path) -> list[float]:
    """The brightness of the pictures of a title: a GIF has one, which is shown for longer."""
    return [TITLE] * (TITLE_IMAGES if file.suffix == ".mp4" else 1)
