"""Importance weights against a float64 definition, and what they must never do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from roost.algorithm.corrections import importance_weights, log_ratios, ratio_sums
from roost.algorithm.objective import TokenBatch, objective
from roost.config import CorrectionConfig, LossConfig

Sample = tuple[list[float], list[float], list[bool]]
"""Trainer's and engine's log-probabilities of a sample's tokens, and which are in the loss."""

MODES = ("truncate", "mask")
LEVELS = ("token", "sequence")

logprob = st.floats(-12, 0, width=32)
token = st.tuples(logprob, logprob, st.booleans())
samples = st.lists(
    st.lists(token, min_size=1, max_size=6).map(lambda rows: tuple(map(list, zip(*rows)))),  # noqa: B905
    min_size=1,
    max_size=5,
)
bounds = st.tuples(st.floats(0, 0.99), st.floats(1, 8))


def config(mode: str, level: str, low: float = 0.0, high: float = 2.0) -> CorrectionConfig:
    return CorrectionConfig.model_validate({"mode": mode, "level": level, "min": low, "max": high})


def flat(rows: Sequence[Sample]) -> tuple[Tensor, TokenBatch]:
    """The trainer's log-probabilities, and the rest as the objective takes it."""
    trainer = torch.tensor([value for row, _, _ in rows for value in row])
    inside = torch.tensor([value for _, _, row in rows for value in row])
    owners = [number for number, (row, _, _) in enumerate(rows) for _ in row]
    tokens = TokenBatch(
        advantages=torch.linspace(-1.5, 2.0, len(trainer)),
        weights=inside.float() / 7,
        samples=torch.tensor(owners),
        old_logprobs=None,
        reference_logprobs=trainer - 0.3,
        engine_logprobs=torch.tensor([value for _, row, _ in rows for value in row]),
    )
    return trainer, tokens


def weights(rows: Sequence[Sample], settings: CorrectionConfig) -> Tensor:
    trainer, tokens = flat(rows)
    found = importance_weights(log_ratios(trainer, tokens, settings.level), settings)
    assert found is not None
    return found


def plain(rows: Sequence[Sample], settings: CorrectionConfig) -> list[list[float | None]]:
    """The definition in Python's floats; None outside the loss, where nothing is asked of it."""
    result: list[list[float | None]] = []
    for trainer, engine, inside in rows:
        logs = [t - e for t, e, i in zip(trainer, engine, inside, strict=True) if i]
        if settings.level == "sequence" and logs:
            logs = [math.fsum(logs) / len(logs)] * len(logs)
        left = iter([_bounded(math.exp(value), settings) for value in logs])
        result.append([next(left) if i else None for i in inside])
    return result


def _bounded(ratio: float, settings: CorrectionConfig) -> float:
    if settings.mode == "truncate":
        return min(max(ratio, settings.min), settings.max)
    return ratio if settings.min <= ratio <= settings.max else 0.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", LEVELS)
@given(rows=samples, limits=bounds)
def test_agrees_with_the_definition(
    mode: str, level: str, rows: list[Sample], limits: tuple[float, float]
) -> None:
    settings = config(mode, level, *limits)
    expected = [value for row in plain(rows, settings) for value in row]
    for ours, theirs in zip(weights(rows, settings).tolist(), expected, strict=True):
        if theirs is not None and not _near_a_bound(ours, theirs, settings):
            assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)


def _near_a_bound(ours: float, theirs: float, settings: CorrectionConfig) -> bool:
    """Where float32 falls on the other side of a bound: one keeps the token, the other drops it."""
    kept = max(ours, theirs)
    edges = (settings.min, settings.max)
    return settings.mode == "mask" and any(kept == pytest.approx(e, rel=1e-4) for e in edges)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", LEVELS)
@given(rows=samples, limits=bounds)
def test_no_weight_leaves_the_bounds(
    mode: str, level: str, rows: list[Sample], limits: tuple[float, float]
) -> None:
    settings = config(mode, level, *limits)
    low, high = torch.tensor(limits)
    found = weights(rows, settings)
    allowed = (found >= low) & (found <= high)
    if mode == "mask":
        allowed |= found == 0
    assert bool(allowed.all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("importance", LEVELS)
@given(rows=samples)
def test_where_engine_and_trainer_agree_not_a_bit_changes(
    mode: str, level: str, importance: str, rows: list[Sample]
) -> None:
    """Of the loss, its gradient and its sums, KL and all."""
    trainer, tokens = flat([(t, t, inside) for t, _, inside in rows])
    settings = config(mode, level)
    loss = LossConfig.model_validate({"importance": importance, "beta": 0.1})
    correction = importance_weights(log_ratios(trainer, tokens, level), settings)
    results = []
    for given_weights in (None, correction):
        logprobs = trainer.clone().requires_grad_()
        value, sums = objective(logprobs, trainer.exp(), tokens, loss, given_weights)
        results.append((value.item(), torch.autograd.grad(value, logprobs)[0].tolist(), sums))
    assert results[0] == results[1]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", LEVELS)
@given(rows=samples, order=st.randoms(use_true_random=False))
def test_a_samples_weights_depend_on_no_other_sample(
    mode: str, level: str, rows: list[Sample], order: Any
) -> None:
    """Alone, or in whatever company and order: the same bits."""
    settings = config(mode, level, 0.5, 1.5)
    alone = [weights([row], settings).tolist() for row in rows]
    shuffled = list(range(len(rows)))
    order.shuffle(shuffled)
    together = weights([rows[number] for number in shuffled], settings)
    split = torch.split(together, [len(rows[number][0]) for number in shuffled])
    assert [row.tolist() for row in split] == [alone[number] for number in shuffled]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("level", LEVELS)
def test_tokens_outside_the_loss_reach_nothing(mode: str, level: str) -> None:
    """A tool's token of probability e^-400, between two of the model's: its ratio is 0 or more than
    a float holds."""
    near: Sample = ([-1.0, -1.0, -2.0], [-1.2, -1.0, -1.9], [True, False, True])
    settings = config(mode, level)
    for trainer, engine in ((-400.0, -1.0), (-1.0, -400.0), (-math.inf, -1.0)):
        far: Sample = ([-1.0, trainer, -2.0], [-1.2, engine, -1.9], [True, False, True])
        expected, found = weights([near], settings), weights([far], settings)
        assert torch.equal(found[[0, 2]], expected[[0, 2]])
        assert bool(found.isfinite().all())
        sums = ratio_sums(log_ratios(*flat([far]), level), flat([far])[1].mask, settings)
        near_sums = ratio_sums(log_ratios(*flat([near]), level), flat([near])[1].mask, settings)
        assert sums == near_sums


def test_a_long_completion_is_not_dropped_for_its_length() -> None:
    """Of 400 tokens, each 0.012 nats likelier to the trainer: as product 120, as mean 1.012."""
    row: Sample = ([-0.988] * 400, [-1.0] * 400, [True] * 400)
    assert weights([row], config("mask", "sequence")).tolist() == pytest.approx(
        [math.exp(0.012)] * 400, rel=1e-5
    )


def test_off_weights_nothing() -> None:
    trainer, tokens = flat([([-1.0], [-9.0], [True])])
    assert importance_weights(log_ratios(trainer, tokens, "token"), config("off", "token")) is None


def test_sums_by_hand() -> None:
    """Ratios of 2, 8 and, outside the loss, 16; then 0.25 alone."""
    logs = [math.log(value) for value in (2.0, 16.0, 8.0, 0.25)]
    rows: list[Sample] = [
        ([-5.0 + log for log in logs[:3]], [-5.0] * 3, [True, False, True]),
        ([-5.0 + logs[3]], [-5.0], [True]),
    ]
    trainer, tokens = flat(rows)
    by_token = ratio_sums(
        log_ratios(trainer, tokens, "token"), tokens.mask, config("mask", "token", 0.5, 4.0)
    )
    assert by_token == pytest.approx(
        {"ratio": 10.25, "ratio_outside": 2, "ratio_max": 8.0, "ratio_inverse_max": 4.0}
    )
    by_sequence = ratio_sums(
        log_ratios(trainer, tokens, "sequence"), tokens.mask, config("mask", "sequence", 0.2, 3.0)
    )
    assert by_sequence == pytest.approx(
        {"ratio": 8.25, "ratio_outside": 2, "ratio_max": 4.0, "ratio_inverse_max": 4.0}
    )


def test_no_tokens_no_sums() -> None:
    empty = torch.zeros(0)
    tokens = TokenBatch(empty, empty, torch.zeros(0, dtype=torch.int64), None, None, empty)
    for level in LEVELS:
        ratios = log_ratios(empty, tokens, level)
        assert set(ratio_sums(ratios, tokens.mask, config("mask", level)).values()) == {0.0}
