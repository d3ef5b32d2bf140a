"""Error messages: one paragraph that says what was given, what is allowed, and a similar allowed value."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from enn_ppo.settings.schema import fields_of, unknown_setting
from enn_ppo.training.errors import Interrupted, PartLost
from entity_gym.errors import nearest, shortened
from entity_gym.output import tell
from entity_gym.pools.processes.worker import WorkerDied

_Lost = WorkerDied | PartLost  # neither a bug nor a mistake of the user
_shown: set[str] = set()  # warnings of the running command, with 0 for every number


def guarded(action: Callable[[], object], schema: type[Any]) -> int:
    """Run `action`, print a message for any exception, and return the exit code.

    With Hydra's environment variable HYDRA_FULL_ERROR=1, mistakes of the user have a traceback, too.

    Returns:
        0 done, 1 an unexpected error (with its traceback), 2 a mistake of the user, such as a setting that `schema` does not
        have, 130 interrupted, 141 nobody reads the output, 143 terminated.
    """
    try:
        with warnings.catch_warnings():
            _shown.clear()
            warnings.showwarning = _warn  # type: ignore[assignment]
            action()
    except SystemExit as exit_:  # --version, and codes of jobs
        if notes := getattr(exit_, "__notes__", []):  # added by pools: an environment called sys.exit
            print(f"error: sys.exit({exit_.code!r}), {'; '.join(notes)}", file=sys.stderr)
            return 1
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except (Interrupted, KeyboardInterrupt) as error:
        print(str(error) or "interrupted", file=sys.stderr)
        return error.exit_code if isinstance(error, Interrupted) else 130
    except BrokenPipeError:  # the reader of the output, such as `head`, has read all that it wants
        # otherwise the interpreter's flush at exit would fail as well
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        paragraph = told(error, schema)
        if paragraph is None or os.environ.get("HYDRA_FULL_ERROR") == "1":
            traceback.print_exception(error, file=sys.stderr)
        if paragraph is None:
            return 1
        print(f"error: {paragraph}", file=sys.stderr)
        return 1 if isinstance(error, _Lost) else 2
    return 0


def _warn(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
    """Print a warning without its source line; those at one line that differ in their numbers alone are printed once.

    Python repeats a warning whenever filters have changed since, which other libraries do in every step.
    """
    ours = category is UserWarning and Path(filename).is_relative_to(Path(__file__).parents[2])
    text = f"warning: {message}\n" if ours else warnings.formatwarning(message, category, filename, lineno)
    if (key := re.sub(r"\d+", "0", text)) not in _shown:
        _shown.add(key)
        tell(text.removesuffix("\n"))


def told(error: Exception, schema: type[Any]) -> str | None:
    """The message of an error in one paragraph of at most 1,000 characters; None for a bug, which needs a traceback."""
    message = _explain(error, schema)
    return None if message is None else shortened(re.sub(r"\s*\n\s*", " ", message).strip())


def _explain(error: Exception, schema: type[Any]) -> str | None:
    """The message of a user's mistake; None for other errors."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        hint = "; for a world of your own: env=custom env.id=my_pkg.my_env:MyEnv" if group == "env" else ""
        return f"{group}={choice} is not a choice; {nearest(choice, error.options)}{hint}"
    if isinstance(error, OverrideParseException):
        lines = [line for line in error.message.split("\n") if not line.startswith(("See ", "Error parsing"))]
        return f"the argument {error.override!r} cannot be read: {' '.join(lines)}; arguments look like optim.lr=3e-4"
    key = re.match(r"Could not override '([^'@]+)", str(error))
    if isinstance(error, ConfigCompositionException) and key:
        if key[1].startswith("value_net."):
            return f"{key[1]} needs a separate value network, with a setting of this name: value_net=default"
        if key[1] not in (known := [*fields_of(schema), "experiment"]):
            return unknown_setting(key[1], known)
    if isinstance(error, HydraException | OmegaConfBaseException | YAMLError):
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        return f"the settings cannot be composed: {error}{cause}"
    if isinstance(error, ValueError | _Lost):
        # A worker process adds its traceback, which HYDRA_FULL_ERROR=1 shows.
        notes = [note.partition(":\nTraceback")[0] for note in getattr(error, "__notes__", [])]
        return str(error) + "".join(f" {note}" if note.startswith("(") else f"; {note}" for note in notes)
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"the name {Path(str(error.filename)).name[:60]}... is too long"
    return None
