"""``roost bench growth``: what a step costs as its completions become more, and longer.

Each point is a step of Roost's alone: every completion decoded to its full length, then trained.
Linear is a line through all points of a series, by least squares of relative errors; a point's
distance from it is given as a share.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import torch

from roost.bench.batches import scored_sample
from roost.bench.job import WORKLOADS
from roost.bench.prompts import Prompter
from roost.bench.race import Say
from roost.bench.timing import alternate
from roost.bench.training import build_trainer, run_config
from roost.engines.embedded import EmbeddedEngine
from roost.engines.protocol import SamplingParams
from roost.errors import ConfigError
from roost.samples import Group

GENERATIONS = 8
CACHE_BYTES = 2**33
"""A bound; the engine allocates what a step needs."""
LEAST_COMPLETIONS = 8
SHORTEST = 64
FIXED_TOKENS = 128
"""Length of completions where their number grows."""
FIXED_COMPLETIONS = 16
"""Their number where the length grows."""
_WIDTH = 48
"""Columns of the longest bar."""


def measure(
    model: str,
    method: str,
    *,
    most_completions: int,
    longest: int,
    rounds: int,
    threads: int,
    say: Say,
) -> dict[str, Any]:
    """Time every point in turns.

    Returns:
        ``completions`` and ``length``: for each point its ``x``, ``step_s``, ``line_s`` and
        ``off_line``; and ``worst_off_line`` of each series.

    Raises:
        ConfigError: a limit is below the first point.
    """
    numbers = doubling(LEAST_COMPLETIONS, most_completions, "--most-completions")
    lengths = doubling(SHORTEST, longest, "--longest")
    torch.set_num_threads(threads)
    most = max(most_completions, FIXED_COMPLETIONS)
    stepper = _Stepper(model, method, most // GENERATIONS, max(longest, FIXED_TOKENS))
    shapes = [(n, FIXED_TOKENS) for n in numbers] + [(FIXED_COMPLETIONS, n) for n in lengths]
    seconds = alternate({str(shape): _told(stepper, shape, say) for shape in shapes}, rounds)
    series = {
        "completions": _series(numbers, [seconds[str((n, FIXED_TOKENS))] for n in numbers]),
        "length": _series(lengths, [seconds[str((FIXED_COMPLETIONS, n))] for n in lengths]),
    }
    return {
        "kind": "growth",
        "model": model,
        "method": method,
        "threads": threads,
        "steps": rounds,
        **series,
        "worst_off_line": {
            name: max(abs(point["off_line"]) for point in points) for name, points in series.items()
        },
    }


def doubling(first: int, last: int, option: str) -> list[int]:
    """``first`` and its doubles up to ``last``.

    >>> doubling(8, 40, "--most-completions")
    [8, 16, 32]

    Raises:
        ConfigError: ``last`` is below ``first``.
    """
    if last < first:
        raise ConfigError(f"{option} {last}: the first point is {first}. Give that or more.")
    return [first * 2**power for power in range((last // first).bit_length())]


def _told(stepper: _Stepper, shape: tuple[int, int], say: Say) -> Callable[[], None]:
    def step() -> None:
        say(f"{shape[0]} completions of {shape[1]} tokens")
        stepper.step(*shape)

    return step


class _Stepper:
    """Does steps of any shape on one policy."""

    def __init__(self, model: str, method: str, prompts: int, longest: int) -> None:
        self._trainer, tokenizer = build_trainer(run_config(model, method, longest))
        self._engine = EmbeddedEngine(self._trainer.policy, None, cache_bytes=CACHE_BYTES)
        prompter = Prompter(tokenizer)
        rows = prompter.rows(prompts, WORKLOADS["short"].prompt_tokens)
        self._prompts = prompter.encode(rows)
        self._steps = count()

    def step(self, completions: int, tokens: int) -> None:
        """Sample so many completions of exactly that length, and train on them."""
        number = next(self._steps)
        prompts = self._prompts[: completions // GENERATIONS]
        groups = {prompt.id: Group(prompt, []) for prompt in prompts}
        sampling = SamplingParams(max_completion_tokens=tokens)
        samples = self._engine.generate(prompts, GENERATIONS, sampling, seed=0, step=number)
        rng = random.Random(number)  # for advantages: no reward is measured here
        for sample in samples:
            scored = scored_sample(sample.prompt_id, sample.index, sample.token_ids, rng)
            scored.logprobs = sample.logprobs
            groups[sample.prompt_id].samples.append(scored)
        self._trainer.update(list(groups.values()))


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Intercept a and slope b of the line with the least sum of ``((y - a - bx) / y) ** 2``.

    Relative errors, so that a small step counts as much as a large one. One point alone gives a
    line through it and 0.
    """
    if len(xs) == 1:
        return 0.0, ys[0] / xs[0]
    weights = [1.0 / y**2 for y in ys]
    total = sum(weights)
    mean_x = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    mean_y = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    points = list(zip(weights, xs, ys, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, x, y in points) / sum(
        w * (x - mean_x) ** 2 for w, x, _ in points
    )
    return mean_y - slope * mean_x, slope


def _series(xs: Sequence[int], ys: Sequence[float]) -> list[dict[str, float]]:
    intercept, slope = fit_line(xs, ys)
    points = []
    for x, y in zip(xs, ys, strict=True):
        line = intercept + slope * x
        points.append({"x": x, "step_s": y, "line_s": line, "off_line": y / line - 1.0})
    return points


def plot(points: Sequence[Mapping[str, float]], width: int = _WIDTH) -> list[str]:
    """A bar for each point, its length the seconds, and a ``|`` where the line through all is.

    >>> point = {"x": 8, "step_s": 3.0, "line_s": 4.0, "off_line": -0.25}
    >>> plot([point], width=4)
    ['     8     3.00 s  -25%  ### |']
    """
    most = max(max(point["step_s"], point["line_s"]) for point in points)
    lines = []
    for point in points:
        bar = "#" * round(point["step_s"] / most * width)
        place = max(0, round(point["line_s"] / most * width))
        marked = f"{bar[:place]:{place}}|{bar[place:]}"
        head = f"{point['x']:6g} {point['step_s']:8.2f} s {point['off_line']:+5.0%}"
        lines.append(f"{head}  {marked}")
    return lines


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """Both series for a person."""
    captions = {
        "completions": f"completions of {FIXED_TOKENS} tokens each",
        "length": f"tokens of each of {FIXED_COMPLETIONS} completions",
    }
    lines = [
        f"{result['model']}, {result['method']} training: seconds a step, medians of "
        f"{result['steps']} in turns, {result['threads']} threads"
    ]
    for name, caption in captions.items():
        worst = result["worst_off_line"][name]
        lines += ["", f"{caption} (| is a straight line; furthest from it: {worst:.0%})"]
        lines += plot(result[name])
    return lines
