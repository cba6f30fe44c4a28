"""Changes to a recipe that make a run fit its device, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from roost.planner.embedded_choice import choose
from roost.planner.embedded_sizes import RunSizes

SHOWN = 3
LENGTH = "rollout.max_completion_tokens"
LEAST_COMPLETION = 16
"""Tokens below which a shorter completion is no longer proposed."""


@dataclass(frozen=True, slots=True)
class FittingChange:
    """One change, or several together, and what they leave free."""

    change: str
    """The fields to set."""
    headroom_bytes: int


@dataclass(frozen=True, slots=True)
class _Edit:
    what: str
    price: int
    """0 changes nothing that is learnt, 1 the numbers, 2 what is trained, 3 the task."""
    section: str
    field: str
    value: object

    def on(self, sizes: RunSizes) -> RunSizes:
        """The run with this field set."""
        part = getattr(sizes.config, self.section).model_copy(update={self.field: self.value})
        width = 2 if self.field == "dtype" else sizes.dtype_bytes
        config = sizes.config.model_copy(update={self.section: part})
        return replace(sizes, config=config, dtype_bytes=width)


def fitting_changes(sizes: RunSizes, usable: int) -> list[FittingChange]:
    """The three cheapest changes that make a run fit in so many bytes; two at once where fewer than
    three do alone."""
    edits = sorted(_edits(sizes), key=lambda edit: edit.price)
    found: list[FittingChange] = []
    enough: set[_Edit] = set()
    for edit in edits:
        change = _fitting([edit.what], edit.on(sizes), usable)
        if change is not None:
            found.append(change)
            enough.add(edit)
    rest = [edit for edit in edits if edit not in enough]
    more: list[FittingChange | None] = [_shortened([], sizes, usable)]
    for one, other in combinations(rest, 2):
        more.append(_fitting([one.what, other.what], other.on(one.on(sizes)), usable))
    more += [_shortened([edit.what], edit.on(sizes), usable) for edit in rest]
    found += [change for change in more if change is not None]
    return found[:SHOWN]


def _fitting(what: list[str], sizes: RunSizes, usable: int) -> FittingChange | None:
    """The change where it is one and fits."""
    headroom = choose(sizes, usable).headroom
    return FittingChange(" and ".join(what), headroom) if what and headroom >= 0 else None


def _shortened(what: list[str], sizes: RunSizes, usable: int) -> FittingChange | None:
    """With the longest completions that fit, halved as often as it takes."""
    tokens = sizes.completion // 2
    while tokens >= LEAST_COMPLETION:
        edit = _Edit(f"{LENGTH} = {tokens}", 3, "rollout", "max_completion_tokens", tokens)
        change = _fitting([*what, edit.what], edit.on(sizes), usable)
        if change is not None:
            return change
        tokens //= 2
    return None


def _edits(sizes: RunSizes) -> Iterator[_Edit]:
    """All that is worth trying, each by itself."""
    config, train, rollout = sizes.config, sizes.config.train, sizes.config.rollout
    if rollout.cache_bytes is not None:
        yield _Edit("leave rollout.cache_bytes out", 0, "rollout", "cache_bytes", None)
    if (train.micro_batch_tokens or 0) > sizes.sequence:
        what = f"train.micro_batch_tokens = {sizes.sequence}"
        yield _Edit(what, 0, "train", "micro_batch_tokens", sizes.sequence)
    if train.gradient_checkpointing is False:
        what = "train.gradient_checkpointing = true"
        yield _Edit(what, 0, "train", "gradient_checkpointing", True)
    if sizes.colocated:
        yield _Edit("rollout.engine = 'embedded'", 0, "rollout", "engine", "embedded")
        if sizes.device == "cuda" and rollout.sleep == 0:
            yield _Edit("rollout.sleep = 1", 0, "rollout", "sleep", 1)
    if sizes.dtype_bytes == 4:
        yield _Edit("model.dtype = 'bfloat16'", 1, "model", "dtype", "bfloat16")
    if sizes.device == "cuda" and train.optimizer == "adamw":
        yield _Edit("train.optimizer = 'adamw_8bit'", 1, "train", "optimizer", "adamw_8bit")
    if train.method == "full":
        yield _Edit("train.method = 'lora'", 2, "train", "method", "lora")
    if config.loss.beta > 0:
        yield _Edit("loss.beta = 0", 2, "loss", "beta", 0.0)
