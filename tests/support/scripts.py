"""The repository's scripts: where they are, and how the Python ones are loaded."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "scripts"


def load(name: str) -> ModuleType:
    """A Python script as a module, whatever its name ends in; its ``main`` is not run."""
    module_name = f"script_{name.replace('-', '_').removesuffix('.py')}"
    loader = SourceFileLoader(module_name, str(SCRIPTS / name))
    spec = spec_from_loader(module_name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module
