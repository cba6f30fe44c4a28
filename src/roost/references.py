"""``file.py:function`` and ``module:function``, as recipes name Python functions."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from roost.errors import RoostError, did_you_mean


def load_reference(
    reference: str, base_dir: Path, *, field: str, error: type[RoostError]
) -> Callable[..., Any]:
    """The function that a recipe names.

    Args:
        reference: ``path/to/file.py:function``, the path relative to ``base_dir`` or to the
            working directory; or ``package.module:function``.
        base_dir: The recipe's folder.
        field: The configuration field, for messages.
        error: The class to raise.

    Raises:
        RoostError: of class ``error``: no such file, it does not import, no such function, or it
            is not callable.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name:
        raise error(f"{field} = {reference!r}: write 'file.py:function' or 'module:function'.")
    module = _load_module(where, base_dir, field, error)
    if not hasattr(module, name):
        names = [n for n in vars(module) if callable(getattr(module, n)) and not n.startswith("_")]
        raise error(
            f"{field} = {reference!r}: '{where}' has no {name!r}.{did_you_mean(name, names)}"
        )
    function = getattr(module, name)
    if not callable(function):
        raise error(
            f"{field} = {reference!r}: {name!r} is a {type(function).__name__}, not a function."
        )
    loaded: Callable[..., Any] = function
    return loaded


def _load_module(where: str, base_dir: Path, field: str, error: type[RoostError]) -> ModuleType:
    try:
        if where.endswith(".py"):
            return load_file(find_file(where, base_dir, field, error))
        return import_module(where)
    except RoostError:
        raise
    except Exception as cause:
        last = traceback.extract_tb(cause.__traceback__)[-1]
        raise error(
            f"{field}: '{where}' does not import: {type(cause).__name__}: {cause} "
            f"({Path(last.filename).name} line {last.lineno})"
        ) from cause


def find_file(where: str, base_dir: Path, field: str, error: type[RoostError]) -> Path:
    """The Python file at a path relative to the recipe or the working directory."""
    for folder in (base_dir, Path.cwd()):
        path = (folder / Path(where).expanduser()).resolve()
        if path.is_file():
            return path
    beside = [p.name for p in (base_dir / where).parent.glob("*.py")]
    near = did_you_mean(Path(where).name, beside)
    raise error(
        f"{field}: no file '{where}' in '{base_dir}' or the working directory."
        f"{near if 'Did you mean' in near else ''}"
    )


def load_file(path: Path) -> ModuleType:
    """Import a Python file under a name of its own, its folder importable meanwhile."""
    name = f"roost_user_{path.stem}_{abs(hash(str(path))):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module
