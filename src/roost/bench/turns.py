"""What a turn measured, and a contender's turns as one row of medians."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of one contender, as it reports it. Tokens are real ones, padding never counts."""

    step_s: float
    generate_s: float
    """Until the last completion has come, rewards that ran meanwhile included."""
    reward_s: float
    """What the rewards took beyond that."""
    train_s: float
    """All the rest of the step."""
    generated_tokens: int
    trained_tokens: int
    """Completion tokens in the loss."""
    completions: int
    peak_bytes: int
    """Most memory so far of the process and those it started; on a GPU, most GPU memory."""
    sync_s: float = 0.0
    """Of ``train_s``: what an engine with weights of its own took to get them, sleep included."""
    proof_s: float = 0.0
    """Of ``sync_s``: the proof that they arrived."""

    @classmethod
    def parse(cls, report: Any) -> Turn:
        """A turn from what a process printed.

        Raises:
            ValueError: naming the field that is missing or no number from 0 on.
        """
        if not isinstance(report, Mapping):
            raise ValueError("it is not a table")
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = report.get(field.name)
            if not _is_amount(value):
                raise ValueError(f"{field.name} is {value!r}")
            values[field.name] = value
        return cls(**values)

    def as_dict(self) -> dict[str, float]:
        """As ``parse`` takes it."""
        return asdict(self)


def _is_amount(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value >= 0


def row_of(name: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """The medians of a contender's counted turns; of memory the most."""
    return {
        "name": name,
        "step_s": median(turn.step_s for turn in turns),
        "generate_s": median(turn.generate_s for turn in turns),
        "reward_s": median(turn.reward_s for turn in turns),
        "train_s": median(turn.train_s for turn in turns),
        "sync_s": median(turn.sync_s for turn in turns),
        "proof_s": median(turn.proof_s for turn in turns),
        "peak_bytes": max(turn.peak_bytes for turn in turns),
        "generated_tokens_per_s": median(
            _rate(turn.generated_tokens, turn.generate_s) for turn in turns
        ),
        "trained_tokens_per_s": median(_rate(turn.trained_tokens, turn.train_s) for turn in turns),
        "generated_tokens": median(turn.generated_tokens for turn in turns),
        "completions": median(turn.completions for turn in turns),
        "step_s_per_1000_tokens": median(
            _rate(1000.0 * turn.step_s, turn.generated_tokens) for turn in turns
        ),
    }


def _rate(amount: float, over: float) -> float:
    return amount / over if over else 0.0


def ratios_of(rows: Sequence[Mapping[str, Any]], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Each other row against ours.

    ``step``: how many times as long as ours a step took. ``step_per_token``: the same for each
    completion token, since sampled lengths differ from one contender to the next. ``peak``: our
    memory as a share of theirs.
    """
    return {
        row["name"]: {
            "step": _rate(row["step_s"], ours["step_s"]),
            "step_per_token": _rate(row["step_s_per_1000_tokens"], ours["step_s_per_1000_tokens"]),
            "peak": _rate(ours["peak_bytes"], row["peak_bytes"]),
        }
        for row in rows
        if row["name"] != ours["name"]
    }
