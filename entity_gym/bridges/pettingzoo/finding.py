"""How PettingZoo environments are found: by ids of PettingZoo, by `package:id`, and by import paths of functions.

classic/connect_four-v3, connect_four_v3      registered by PettingZoo, with its namespace or without
mpe2:simple_spread_v3, mpe2/simple_spread_v3  a module of an installed package that has parallel_env or env
my_package.my_module:make_env                 a class or function
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from typing import Any

from entity_gym.bridges.incoming import Constructor, naming_extras
from entity_gym.bridges.installed import packages_using, versioned_modules

_OPTION = "the PettingZoo environment"


def constructor_of(env: Any, kwargs: Mapping[str, Any]) -> Constructor:
    """Return what makes an environment.

    Args:
        env: a class, a function, or a name as above.
        kwargs: its arguments.

    Raises:
        ValueError: there is no such environment, or it does not take the arguments.
        ImportError: naming what to install.
    """
    if not isinstance(env, str) and not callable(env):
        hint = f"the function {env.__name__}.parallel_env" if hasattr(env, "parallel_env") else "what makes it"
        if isinstance(env, Sequence) and len(env):
            hint = f"what makes one of them, such as the class {type(env[0]).__name__}, and num_envs={len(env)}"
        raise ValueError(f"the PettingZoo environment is {env!r:.200}, which makes none; give {hint}")
    if not isinstance(env, str):
        return Constructor(env, kwargs, _OPTION)
    package, colon, name = env.rpartition(":")
    make = _function_of(package, name) if colon else None
    if colon and make is None and package != "pettingzoo":
        return _imported(env, kwargs)
    if make is None and (registered := _registered(name)):
        constructor = Constructor(_make_by_id, {"env_id": registered, **kwargs}, env)
    else:
        make = make or _unregistered(env)
        constructor = Constructor(make, kwargs, env)
    constructor.name = env
    return constructor


def _imported(path: str, kwargs: Mapping[str, Any]) -> Constructor:
    """Return the constructor at an import path; errors name modules of the package that are near."""
    package, _, name = path.rpartition(":")
    try:
        return Constructor(path, kwargs, _OPTION)
    except ValueError as error:
        if near := difflib.get_close_matches(f"{package}.{name}", versioned_modules(package), n=3):
            error.add_note(f"near are {', '.join(repr(':'.join(module.rsplit('.', 1))) for module in near)}")
        raise


def _registered(env_id: str) -> str | None:
    """Return PettingZoo's own id for `env_id`, in which the namespace may be missing, and - and _ are the same; None: unknown."""
    try:
        import pettingzoo
    except ImportError as error:
        if "/" in env_id and _function_of(*env_id.split("/", 1)):
            return None
        raise ImportError(f'{env_id} is PettingZoo\'s ({error}): pip install "enn-ppo[pettingzoo]"') from error
    known = [*pettingzoo.parallel_registry, *pettingzoo.aec_registry]
    same = [each for each in known if _folded(each) == _folded(env_id)]
    same = same or [each for each in known if _folded(each.rpartition("/")[2]) == _folded(env_id)]
    return same[0] if same else None


def _unregistered(env_id: str) -> Any:
    """Return the function of an environment that is in some installed package.

    Raises:
        ValueError: there is none, or there are several.
    """
    import pettingzoo

    *namespace, name = re.split("[/:]", env_id)
    package = "/".join(namespace)
    if package and (make := _function_of(package, name)):
        return make
    modules = [module for package in packages_using("pettingzoo") for module in versioned_modules(package)]
    same = [module for module in modules if not package and _folded(module.rpartition(".")[2]) == _folded(env_id)]
    if len(same) == 1 and (make := _function_of(*same[0].rsplit(".", 1))):
        return make
    names = {each: each for each in [*pettingzoo.parallel_registry, *pettingzoo.aec_registry]}
    names |= {":".join(module.rsplit(".", 1)): module for module in modules}
    by_end: dict[str, list[str]] = {}
    for each in names:
        by_end.setdefault(_folded(re.split(r"[/:]", each)[-1]), []).append(each)
    ends = difflib.get_close_matches(_folded(name), by_end, n=3, cutoff=0.6)
    near = [repr(each) for end in ends for each in by_end[end]]
    hint = f"near are {', '.join(near)}" if near else f"PettingZoo's own are of {', '.join(_namespaces(pettingzoo))}"
    raise ValueError(
        f"there is no environment {env_id!r}; {hint}; environments of other packages are written package:name, such as "
        "mpe2:simple_spread_v3, and your own my_package.my_module:make_env"
    )


def _function_of(package: str, name: str) -> Any:
    """Return `parallel_env`, or else `env`, of the module `name` in a package; None if there is no such module."""
    path = ".".join([package, *re.split(r"[/.]", name)]).replace("-", "_").replace("/", ".")
    if not all(part.isidentifier() for part in path.split(".")):
        return None
    with naming_extras():
        try:
            if importlib.util.find_spec(path) is None:  # imports the package
                return None
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{path}.".startswith(f"{error.name}."):
                return None
            raise
    return getattr(module, "parallel_env", None) or getattr(module, "env", None)


def _namespaces(pettingzoo: Any) -> list[str]:
    return sorted({each.partition("/")[0] + "/" for each in pettingzoo.aec_registry})


def _folded(name: str) -> str:
    return name.replace("-", "_").lower()


def _make_by_id(env_id: str, **kwargs: Any) -> Any:
    """Make a registered environment: the parallel form if there is one."""
    import pettingzoo

    api = "parallel" if env_id in pettingzoo.parallel_registry else "aec"
    try:
        return pettingzoo.make(api, pettingzoo.spec(api, env_id), **kwargs)
    except (ImportError, TypeError, pettingzoo.env_registry.exceptions.FailedToImport) as error:
        arguments = f" with {kwargs}" if kwargs else ""
        raise ValueError(f"PettingZoo cannot make {env_id!r}{arguments}: {error}") from error
