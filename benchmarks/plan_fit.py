"""Fits the planner's constants again on the published measurements, and says what cross-validation
gives: the error on rows that a fit has not seen.

python benchmarks/plan_fit.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median

import numpy as np
from plan_cases import NotPlannedError, burst_request, of
from plan_memory_fit import startup_crossvalidation
from plan_scores import measured_times, phase_of, phase_seconds, step_seconds
from plan_step_cases import step_request

from roost.bench.tables import table
from roost.planner.constants import PUBLISHED, Constants
from roost.planner.plan import make_plan
from roost.planner.request import Layout, Request

PRIORS = {
    "bandwidth_efficiency": 0.8,  # aiconfigurator
    "layer_launch_s": 50e-6,  # about ten kernels of 5 us
    "pcie_allreduce_s": 26e-6,  # NCCL's small messages, entry rtx6k-nccl
    "pcie_allreduce_share": 0.35,  # 22.2 of 63 GB/s, the same entry
    "network_hop_s": 100e-6,  # a round trip over TCP in one room
    "sequence_s": 50e-6,
    "prefill_efficiency": 0.5,
}
"""Constants of decoding, and where a fit starts: what was known without these rows."""
STEP_PRIORS = {
    "eager_layer_s": 1e-3,
    "adapter_mfu": 0.2,
    "train_overhead_s": 2.0,
    "forward_overhead_s": 1.0,
}
"""The same of the rest of a GRPO step."""
HELD_OUT = ("gpt-oss-120b", "L40S", "nemo")
"""Groups that no constant is fitted on: experts over four nodes, another card, whole steps of
another trainer."""


@dataclass(frozen=True)
class Row:
    """One measured time and the request that a plan predicts it from."""

    id: str
    group: str
    """Rows of the same model and cards, or of one trainer: left out together."""
    request: Request
    layout: Layout
    seconds: float
    what: str
    """``decode step``, ``burst``, ``GRPO step``, or a phase of one."""

    def predict(self, constants: Constants) -> float:
        """Seconds of the plan."""
        seconds = make_plan(self.request, self.layout, constants).seconds
        if self.what == "decode step":
            return seconds.decode.total
        names = {"burst": "generate", "GRPO step": "total"}
        return phase_of(seconds, names.get(self.what, self.what))

    @property
    def held_out(self) -> bool:
        """Whether no fit sees it."""
        return any(name in self.group for name in HELD_OUT)


@cache
def decode_rows() -> tuple[Row, ...]:
    """Decode steps, and bursts whose utilization is printed."""
    found: list[Row] = []
    for entry in of("decode"):
        try:
            request, layout = burst_request(entry)
        except NotPlannedError:
            continue
        group = f"{entry['model']} x{layout.tensor_parallel}, {entry['gpu']}"
        for what, seconds in measured_times(entry):
            name = "decode step" if what == "step" else what
            found.append(Row(entry["id"], group, request, layout, seconds, name))
    return tuple(found)


@cache
def step_rows() -> tuple[Row, ...]:
    """Phases where they are printed, else whole steps."""
    found: list[Row] = []
    for entry in of("grpo_step"):
        try:
            request, layout = step_request(entry)
        except NotPlannedError:
            continue
        group = entry["id"].split("-")[0].rstrip("0123456789")
        group = entry["id"] if group == "verl" else group
        parts = phase_seconds(entry) or [("GRPO step", step_seconds(entry))]
        found += [Row(entry["id"], group, request, layout, sec, what) for what, sec in parts]
    return tuple(found)


def fit(
    data: Sequence[Row], priors: dict[str, float], base: Constants = PUBLISHED, rounds: int = 5
) -> Constants:
    """Least squares of log(predicted / measured) over the logarithms of the constants.

    Gauss-Newton with differences. A weak pull (a tenth of a row each) keeps a constant that the
    rows say nothing of at its prior.
    """
    names = list(priors)
    origin = np.log([priors[name] for name in names])
    point = origin.copy()

    def errors(at: np.ndarray) -> np.ndarray:
        values = dict(zip(names, np.exp(at).tolist(), strict=True))
        constants = replace(base, **values)
        return np.array([error(row, constants) for row in data])

    for _ in range(rounds):
        here = errors(point)
        slopes = np.empty((len(data), len(names)))
        for column in range(len(names)):
            moved = point.copy()
            moved[column] += 1e-4
            slopes[:, column] = (errors(moved) - here) / 1e-4
        pull = 0.1 * np.eye(len(names))
        left = np.vstack([slopes, pull])
        right = -np.concatenate([here, pull @ (point - origin)])
        point = point + np.clip(np.linalg.lstsq(left, right, rcond=None)[0], -0.7, 0.7)
    return replace(base, **dict(zip(names, np.exp(point).tolist(), strict=True)))


def error(row: Row, constants: Constants) -> float:
    """log(predicted / measured)."""
    return float(np.log(row.predict(constants) / row.seconds))


def left_out(
    data: Sequence[Row], priors: dict[str, float], key: Callable[[Row], str]
) -> list[tuple[Row, float]]:
    """The error of each row under a fit on all rows with another key."""
    out = []
    for name in dict.fromkeys(map(key, data)):
        constants = fit([row for row in data if key(row) != name], priors, rounds=4)
        out += [(row, error(row, constants)) for row in data if key(row) == name]
    return out


def summary(what: str, fitted: str, errors: Iterable[float]) -> dict[str, object]:
    """Median, root mean square and worst error."""
    logs = np.array(list(errors))
    sizes = (100 * np.abs(np.exp(logs) - 1)).tolist()
    return {
        "what": what,
        "fitted on": fitted,
        "rows": len(sizes),
        "median": f"{median(sizes):.1f} %",
        "spread": f"{np.sqrt(np.mean(logs**2)):.3f}",
        "worst": f"{max(sizes):.1f} %",
    }


def time_crossvalidation() -> list[dict[str, object]]:
    """Errors of the fit on its own rows, on rows and groups left out, and on groups held out."""
    out = []
    for rows, priors in ((decode_rows(), PRIORS), (step_rows(), STEP_PRIORS)):
        data = [row for row in rows if not row.held_out]
        found = fit(data, priors)
        kinds = {
            "all rows": [(row, error(row, found)) for row in data],
            "all but the row": left_out(data, priors, lambda row: f"{row.id} {row.what}"),
            "all but its group": left_out(data, priors, lambda row: row.group),
            "never on its like": [(row, error(row, found)) for row in rows if row.held_out],
        }
        for what in dict.fromkeys(row.what for row in rows):
            for fitted, pairs in kinds.items():
                values = [value for row, value in pairs if row.what == what]
                if values:
                    out.append(summary(what, fitted, values))
    return out


def constants_table() -> list[dict[str, object]]:
    """Each fitted constant: its prior, the fit, and what ships."""
    out: list[dict[str, object]] = []
    for rows, priors in ((decode_rows(), PRIORS), (step_rows(), STEP_PRIORS)):
        found = fit([row for row in rows if not row.held_out], priors)
        out += [
            {
                "constant": name,
                "prior": f"{prior:.3g}",
                "fit": f"{getattr(found, name):.3g}",
                "shipped": f"{getattr(PUBLISHED, name):.3g}",
            }
            for name, prior in priors.items()
        ]
    return out


def main() -> None:
    print(table(constants_table()), "\n")
    print(table(startup_crossvalidation() + time_crossvalidation()))


if __name__ == "__main__":
    main()
