"""Scores a plan on each published measurement: predicted, band, measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from plan_cases import (
    GIB,
    OLDEST,
    Entry,
    NotPlannedError,
    burst_request,
    minor_of,
    of,
    startup_request,
)
from plan_step_cases import step_request

from roost.planner.bands import around
from roost.planner.constants import PUBLISHED
from roost.planner.plan import Plan, make_plan
from roost.planner.request import BYTES
from roost.planner.timing import Seconds

NEVER_FITTED = re.compile("gpt-oss-120b|L40S")
"""Of decoding: experts over four nodes, and another card."""
SMALL_GIB = 5.0
"""Caches below this are scored by GiB: 3 % of them is less than what two starts differ by."""


@dataclass(frozen=True)
class Score:
    """One measured quantity beside its prediction."""

    id: str
    what: str
    unit: str
    predicted: float
    low: float
    high: float
    measured: float
    source: str
    exact: bool
    """Whether the source prints all settings."""
    held_out: bool
    """Whether no constant was fitted on it."""
    old: bool = False
    """Whether the engine is older than those that the planner is for."""

    @property
    def error(self) -> float:
        """Relative; above 0 the plan is too high."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the band covers the measurement."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Unplanned:
    """An entry that no plan can be asked of."""

    id: str
    why: str


Found = tuple[list[Score], list[Unplanned]]


def startup() -> Found:
    """The cache of one card at startup, in GiB."""
    return _collect("vllm_startup", _startup)


def decode() -> Found:
    """One decode step, in milliseconds, and whole bursts, in seconds."""
    return _collect("decode", _decode)


def steps() -> Found:
    """Whole GRPO steps and their phases, in seconds."""
    return _collect("grpo_step", _step)


def _collect(category: str, score: Callable[[Entry], Iterator[Score]]) -> Found:
    found: list[Score] = []
    missing: list[Unplanned] = []
    for entry in of(category):
        try:
            found += list(score(entry))
        except NotPlannedError as error:
            missing.append(Unplanned(entry["id"], str(error)))
    return found, missing


def _startup(entry: Entry) -> Iterator[Score]:
    request, layout = startup_request(entry)
    plan = make_plan(request, layout)
    measured, tp = entry["measured"], layout.tensor_parallel
    elements = request.model.shape.kv_elements_per_token(tp)
    each = elements * BYTES[request.engine.cache_dtype] / GIB
    cache = measured.get("kv") or measured["tok"] * each
    names = ("rollout.kv_cache_low_bytes", "rollout.kv_cache_high_bytes")
    low, high = (plan.value(name) / tp / GIB for name in names)
    predicted = plan.engine.cache / tp / GIB
    yield _score(entry, "cache", "GiB", predicted, (low, high), cache)


def _decode(entry: Entry) -> Iterator[Score]:
    plan = make_plan(*burst_request(entry))
    for what, measured in measured_times(entry):
        seconds = plan.seconds.decode.total if what == "step" else plan.seconds.generate
        scale = 1e3 if what == "step" else 1.0
        band = around(seconds * scale, PUBLISHED.generate_spread)
        unit = "ms" if what == "step" else "s"
        yield _score(entry, f"decode {what}", unit, seconds * scale, band, measured * scale)


def measured_times(entry: Entry) -> list[tuple[str, float]]:
    """Seconds that a decode entry measures.

    ``step`` is the median between tokens, where decoding is what happens most: the completion is
    long enough that the median is no step with a prefill in it. ``burst`` is all of a burst, where
    it is known how many sequences the cache held and three in four tokens came.
    """
    out = []
    settings, values = entry["settings"], entry["measured"]
    if "output" not in settings:
        return [("step", values["tpot_p50_ms"] / 1e3)]
    if settings["output"] >= max(512, settings["input"] / 8):
        out.append(("step", values["itl_median_ms"] / 1e3))
    answered = values["generated_tokens"] / settings["concurrency"] / settings["output"]
    if entry["exact_settings"] and answered > 0.75:
        out.append(("burst", values["duration_s"]))
    return out


def _step(entry: Entry) -> Iterator[Score]:
    plan = make_plan(*step_request(entry))
    band = (plan.value("step.low_s"), plan.value("step.high_s"))
    yield _score(entry, "step", "s", plan.seconds.total, band, step_seconds(entry))
    for what, measured in phase_seconds(entry):
        yield _phase(entry, plan, what, measured)


def step_seconds(entry: Entry) -> float:
    """Of a whole step; the middle where the source rounds its rate to a range."""
    measured = entry["measured"]
    if "s_per_step_range" in measured:
        return sum(measured["s_per_step_range"]) / 2
    return float(measured.get("step_s") or measured["s_per_step"])


def phase_seconds(entry: Entry) -> list[tuple[str, float]]:
    """Of the phases that a source prints; verl's generation holds waking and the sync."""
    measured = entry["measured"]
    if "update_actor_s" not in measured:
        return []
    return [
        ("rollout", measured["gen_s"]),
        ("logprob", measured["old_log_prob_s"] + measured["ref_s"]),
        ("train", measured["update_actor_s"]),
    ]


def phase_of(seconds: Seconds, what: str) -> float:
    """A plan's seconds of what a source prints."""
    if what == "rollout":
        return seconds.generate + seconds.sync + seconds.sleep_wake
    return float(getattr(seconds, what))


def _phase(entry: Entry, plan: Plan, what: str, measured: float) -> Score:
    seconds = phase_of(plan.seconds, what)
    spread = "generate" if what == "rollout" else what
    band = around(seconds, getattr(PUBLISHED, f"{spread}_spread"))
    return _score(entry, what, "s", seconds, band, measured)


def _score(
    entry: Entry, what: str, unit: str, predicted: float, band: tuple[float, float], measured: float
) -> Score:
    held_out = bool(entry.get("held_out")) or (what == "step" and entry["id"].startswith("nemo"))
    return Score(
        entry["id"],
        what,
        unit,
        predicted,
        band[0],
        band[1],
        measured,
        entry["source"],
        entry["exact_settings"] and "network_gbps_inferred" not in entry["settings"],
        held_out
        or bool(what.startswith("decode") and NEVER_FITTED.search(entry["model"] + entry["gpu"])),
        what == "cache" and minor_of(entry) < OLDEST,
    )


def typical(scores: list[Score]) -> float:
    """Median size of the relative error."""
    return median(abs(score.error) for score in scores)


def worst(scores: list[Score]) -> float:
    """Largest size of the relative error."""
    return max(abs(score.error) for score in scores)


def coverage(scores: list[Score]) -> float:
    """Share of the measurements that their band covers."""
    return sum(score.inside for score in scores) / len(scores)


def width(scores: list[Score]) -> float:
    """Median of half a band, as a share of the prediction."""
    return median((s.high - s.low) / 2 / s.predicted for s in scores if s.predicted > 0)


def large(scores: list[Score]) -> list[Score]:
    """Caches that a relative error says something of."""
    return [score for score in scores if score.measured >= SMALL_GIB]


def small(scores: list[Score]) -> list[Score]:
    """The others."""
    return [score for score in scores if score.measured < SMALL_GIB]
