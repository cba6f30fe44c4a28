"""Roost trains language models with GRPO on the GPUs people have.

The public names are loaded on first use, so that ``import roost`` costs nothing and
``roost.config`` and ``roost.planner`` never load torch (the light law).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roost.config import RunConfig
    from roost.errors import RoostError
    from roost.run.api import evaluate, train

__version__ = "0.1.0"

__all__ = ["RoostError", "RunConfig", "__version__", "evaluate", "train"]

_HOMES = {
    "RoostError": "roost.errors",
    "RunConfig": "roost.config",
    "train": "roost.run.api",
    "evaluate": "roost.run.api",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'roost' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
