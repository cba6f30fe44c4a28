"""The recipe that a run goes on with: the one it was made by, but for what alters no step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roost.config import RunConfig
from roost.config.loading import build_config, load_config, merge
from roost.errors import CheckpointError
from roost.run.folder import RunFolder

RESUME_MAY_CHANGE = (
    "train.steps",
    "train.micro_batch_tokens",
    "train.gradient_checkpointing",
    "output.",
    "plan.",
    "rollout.cache_bytes",
    "rollout.tensor_parallel",
    "rewards.workers",
)
"""Fields that a resumed run may set anew: none of them alters what a step computes. Micro-batches
and shards of an engine alter the order of its sums, and so its last bits."""


def resumed_config(
    target: RunFolder,
    overrides: Sequence[str] = (),
    recipe: Path | None = None,
    sections: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The configuration to resume with; the run keeps its folder.

    Raises:
        CheckpointError: a recipe or override would change what the run computes; its fields are
            named.
    """
    before = load_config(target.config)
    after = load_config(recipe or target.config, overrides, base=sections)
    old, new = _flat(before.model_dump()), _flat(after.model_dump())
    changed = [name for name in new if new[name] != old.get(name)]
    refused = [n for n in changed if not n.startswith(RESUME_MAY_CHANGE)]
    if refused:
        first = refused[0]
        raise CheckpointError(
            f"the run in '{target.root}' was made by another recipe. What differs: "
            f"{', '.join(refused)} ({first} was {old.get(first)!r}, is {new[first]!r}). "
            "Resume without a recipe, or start a new run."
        )
    kept = {"output": {"folder": before.output.folder}, "train": _chosen(before, after)}
    return build_config(merge(after.model_dump(), kept))


def _chosen(before: RunConfig, after: RunConfig) -> dict[str, Any]:
    """What the plan of the run chose and a recipe leaves open: chosen anew, with other memory
    free, it would round otherwise."""
    names = ("micro_batch_tokens", "gradient_checkpointing")
    return {n: getattr(before.train, n) for n in names if getattr(after.train, n) is None}


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
