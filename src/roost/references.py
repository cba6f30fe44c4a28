"""``file.py:function`` and ``module:function``, as recipes name Python functions."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from roost.errors import RoostError, did_you_mean, nearest


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
        RoostError: of class ``error``: no such file, it does not import, no such function, it is
            not callable, or its arguments cannot be found out.
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
            f"{field} = {reference!r}: {name!r} is of type {type(function).__name__}, not a "
            "function."
        )
    try:
        inspect.signature(function)
    except ValueError:
        raise error(
            f"{field} = {reference!r}: the arguments of {name!r} cannot be found out. Call it from "
            "a Python function of your own and name that."
        ) from None
    loaded: Callable[..., Any] = function
    return loaded


def _load_module(where: str, base_dir: Path, field: str, error: type[RoostError]) -> ModuleType:
    try:
        if where.endswith(".py"):
            return load_file(find_file(where, base_dir, field, error))
        return import_module(where)
    except RoostError:
        raise
    except (Exception, SystemExit) as cause:
        hint = "Mend it, or install what it imports."
        if isinstance(cause, ModuleNotFoundError) and cause.name == where.partition(".")[0]:
            file = f"{where.replace('.', '/')}.py"
            there = any((folder / file).is_file() for folder in (base_dir, Path.cwd()))
            hint = f"Did you mean '{file}:...'?" if there else f"A file is named '{file}:...'."
        raise error(f"{field}: '{where}' does not import: {describe(cause)}. {hint}") from cause


def describe(error: BaseException) -> str:
    """What a person's own code raised, and in which of its lines.

    Example: ``KeyError: 'question' (my_data.py line 7)``.
    """
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"  # names its file and line itself
    theirs = [f for f in traceback.extract_tb(error.__traceback__) if _is_theirs(f.filename)]
    if not theirs:
        return text
    return f"{text} ({Path(theirs[-1].filename).name} line {theirs[-1].lineno})"


def _is_theirs(filename: str) -> bool:
    """Not in a library, nor in Roost."""
    ours = (Path(__file__).parent, Path(sys.prefix), Path(sys.base_prefix))
    parents = Path(filename).parents
    return not filename.startswith("<") and not any(folder in parents for folder in ours)


def find_file(where: str, base_dir: Path, field: str, error: type[RoostError]) -> Path:
    """The Python file at a path relative to the recipe or the working directory."""
    for folder in (base_dir, Path.cwd()):
        path = (folder / Path(where).expanduser()).resolve()
        if path.is_file():
            return path
    near = nearest(Path(where).name, [p.name for p in (base_dir / where).parent.glob("*.py")])
    raise error(
        f"{field}: no file '{where}' in '{base_dir.resolve()}' or the working directory."
        f"{f' Did you mean {near!r}?' if near else ' Paths start at the folder of the recipe.'}"
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
