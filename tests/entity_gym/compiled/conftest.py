"""Compiled code is kept between sessions, but not in the user's home. Its key covers all that it is made from."""

import os
from pathlib import Path

os.environ.setdefault("ENTITY_GYM_CACHE_DIR", str(Path(__file__).parents[3] / ".pytest_cache" / "compiled"))
