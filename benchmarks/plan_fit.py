"""Fits the planner's constants of decoding on the published measurements, and says what
cross-validation gives: the error on rows that the fit has not seen.

python benchmarks/plan_fit.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from plan_cases import Entry, NotPlannedError, burst_request, of
from timing import table

from roost.planner.constants import PUBLISHED, Constants
from roost.planner.plan import Plan, make_plan
from roost.planner.request import Layout, Request

FITTED = (
    "bandwidth_efficiency",
    "layer_launch_s",
    "pcie_allreduce_s",
    "pcie_allreduce_share",
    "network_hop_s",
    "sequence_s",
    "prefill_efficiency",
)
HELD_OUT = "gpt-oss-120b"
"""Never fitted on: mixture of experts over four nodes, a test of the model as a whole."""


@dataclass(frozen=True)
class Row:
    """One measured time and the request that a plan predicts it from."""

    id: str
    group: str
    """Rows of the same model and cards: left out together."""
    request: Request
    layout: Layout
    seconds: float
    what: str
    """``step`` is one decode step, ``burst`` all of a burst."""

    def predict(self, constants: Constants) -> float:
        """Seconds of the plan."""
        plan = make_plan(self.request, self.layout, constants)
        return plan.seconds.generate if self.what == "burst" else decode_seconds(plan)


def decode_seconds(plan: Plan) -> float:
    """One decode step of the rollouts that are resident."""
    return plan.seconds.decode.total


def rows() -> list[Row]:
    """Decode steps, and bursts whose utilization is printed."""
    found: list[Row] = []
    for entry in of("decode"):
        try:
            request, layout = burst_request(entry)
        except NotPlannedError:
            continue
        group = f"{entry['model']} x{layout.tensor_parallel}, {entry['gpu']}"
        for what, seconds in measured(entry):
            found.append(Row(entry["id"], group, request, layout, seconds, what))
    return found


def measured(entry: Entry) -> list[tuple[str, float]]:
    """What an entry measures: the median step where decoding is what happens most, and the burst
    where it is known how many sequences the cache held and all requests were answered in full."""
    out = []
    settings, values = entry["settings"], entry["measured"]
    if settings["output"] >= settings["input"] / 8 and settings["output"] >= 512:
        out.append(("step", values["itl_median_ms"] / 1e3))
    answered = values["generated_tokens"] / settings["concurrency"] / settings["output"]
    if entry["exact_settings"] and answered > 0.75:
        out.append(("burst", values["duration_s"]))
    return out


def fit(data: Sequence[Row], start: Constants = PUBLISHED, rounds: int = 6) -> Constants:
    """Least squares of log(predicted / measured) over the logarithms of the fitted constants.

    Gauss-Newton with differences; a weak pull (a tenth of a row) towards the start keeps constants
    that the rows say nothing of where they are.
    """
    names = list(FITTED)
    point = np.log([getattr(start, name) for name in names])
    origin = point.copy()
    for _ in range(rounds):
        errors = _errors(data, names, point, start)
        slopes = np.empty((len(data), len(names)))
        for column in range(len(names)):
            moved = point.copy()
            moved[column] += 1e-4
            slopes[:, column] = (_errors(data, names, moved, start) - errors) / 1e-4
        pull = 0.1 * np.eye(len(names))
        left = np.vstack([slopes, pull])
        right = -np.concatenate([errors, pull @ (point - origin)])
        step = np.linalg.lstsq(left, right, rcond=None)[0]
        point = point + np.clip(step, -0.5, 0.5)
    return _constants(names, point, start)


def _errors(
    data: Sequence[Row], names: list[str], point: np.ndarray, start: Constants
) -> np.ndarray:
    constants = _constants(names, point, start)
    return np.array([error(row, constants) for row in data])


def _constants(names: list[str], point: np.ndarray, start: Constants) -> Constants:
    values = dict(zip(names, np.exp(point).tolist(), strict=True))
    return replace(start, **values)


def error(row: Row, constants: Constants) -> float:
    """log(predicted / measured)."""
    return float(np.log(row.predict(constants) / row.seconds))


def left_out(data: Sequence[Row], key: Callable[[Row], str]) -> list[tuple[Row, float]]:
    """The error of each row under a fit on all rows with another key."""
    out = []
    for name in dict.fromkeys(map(key, data)):
        constants = fit([row for row in data if key(row) != name], rounds=3)
        out += [(row, error(row, constants)) for row in data if key(row) == name]
    return out


def summary(name: str, errors: Sequence[float]) -> dict[str, object]:
    """Median, root mean square and worst error, in per cent."""
    sizes = [100 * abs(np.exp(value) - 1) for value in errors]
    spread = float(np.sqrt(np.mean(np.square(errors))))
    return {
        "errors": name,
        "rows": len(sizes),
        "median %": round(median(sizes), 1),
        "spread": round(spread, 3),
        "worst %": round(max(sizes), 1),
    }


def main() -> None:
    everything = rows()
    data = [row for row in everything if HELD_OUT not in row.group]
    found = fit(data)
    print(
        table(
            [
                {
                    "constant": n,
                    "fit": f"{getattr(found, n):.3g}",
                    "shipped": f"{getattr(PUBLISHED, n):.3g}",
                }
                for n in FITTED
            ]
        )
    )
    lines = []
    for what in ("step", "burst"):
        chosen = [row for row in data if row.what == what]
        lines.append(summary(f"{what}, all rows in the fit", [error(r, found) for r in chosen]))
    for label, key in (("row", lambda row: row.id), ("group", lambda row: row.group)):
        pairs = left_out(data, key)
        for what in ("step", "burst"):
            values = [value for row, value in pairs if row.what == what]
            lines.append(summary(f"{what}, its {label} left out", values))
    others = [row for row in everything if HELD_OUT in row.group and row.what == "step"]
    lines.append(summary(f"step, {HELD_OUT} (never fitted)", [error(r, found) for r in others]))
    print()
    print(table(lines))


if __name__ == "__main__":
    main()
