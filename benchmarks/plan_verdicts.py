"""What ran and what ran out of memory, beside what a plan says."""

from __future__ import annotations

from dataclasses import dataclass

from plan_cases import GIB, Entry, NotPlannedError, of, startup_request
from plan_scores import Unplanned
from plan_step_cases import boundary_requests

from roost.planner.plan import make_plan
from roost.planner.request import Layout, Request


@dataclass(frozen=True)
class Verdict:
    """Whether something ran, beside what the plan says."""

    id: str
    what: str
    predicted: bool
    fits: bool
    room: str
    source: str

    @property
    def right(self) -> bool:
        """Whether the plan says what happened."""
        return self.predicted == self.fits


def boundaries() -> tuple[list[Verdict], list[Unplanned]]:
    """What fits, and what does not."""
    found: list[Verdict] = []
    missing: list[Unplanned] = []
    for entry in of("vllm_startup") + of("vllm_oom"):
        if "max_model_len" not in entry["settings"]:
            continue
        try:
            found.append(_start_verdict(entry))
        except NotPlannedError as error:
            missing.append(Unplanned(entry["id"], str(error)))
    for entry in of("fit_boundary"):
        try:
            found += [_train_verdict(entry, *case) for case in boundary_requests(entry)]
        except NotPlannedError as error:
            missing.append(Unplanned(entry["id"], str(error)))
    return found, missing


def _start_verdict(entry: Entry) -> Verdict:
    request, layout = startup_request(entry)
    plan = make_plan(request, layout)
    measured, tokens = entry["measured"], request.workload.tokens
    fits = measured.get("fits", measured.get("x", 1) >= 1)
    room = f"{plan.engine.cache_tokens:,} tokens"
    return Verdict(
        entry["id"], f"one of {tokens:,}", plan.engine.resident > 0, fits, room, entry["source"]
    )


def _train_verdict(
    entry: Entry, name: str, fits: bool, request: Request, layout: Layout
) -> Verdict:
    plan = make_plan(request, layout)
    train = next(phase for phase in plan.phases if phase.name == "train")
    left = plan.request.card_bytes - train.bytes
    room = f"{left / GIB:+.1f} GiB"
    return Verdict(entry["id"], name, left >= 0, fits, room, entry["source"])
