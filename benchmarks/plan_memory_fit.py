"""Fits the constants of an engine's memory on startup logs: the sampler's bytes, what lies outside
torch, CUDA graphs; and the spread of each term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from plan_cases import GIB, OLDEST, NotPlannedError, minor_of, of, startup_request

from roost.bench.tables import table
from roost.planner import bands, engine_memory
from roost.planner.plan import Plan, make_plan


@dataclass(frozen=True)
class Log:
    """A startup log and its plan."""

    id: str
    plan: Plan
    measured: dict[str, float]
    unused: bool

    @property
    def joined(self) -> bool:
        """Whether the engine has more cards than one."""
        return self.plan.layout.tensor_parallel > 1

    @property
    def outside(self) -> float:
        """GiB outside torch: as logged, else what is left of the share beside the planned terms."""
        if "nt" in self.measured:
            return self.measured["nt"]
        share = self.plan.engine.share / self.plan.layout.tensor_parallel / GIB
        taken = sum(map(self.term, ("engine weights", "engine activations", "CUDA graphs")))
        return share - taken - self.cache

    @property
    def native(self) -> bool:
        """Whether PyTorch's sampler sorts."""
        return self.plan.request.engine.native_sampler

    @property
    def cache(self) -> float:
        """Of one card, GiB."""
        elements = self.plan.request.model.shape.kv_elements_per_token(
            self.plan.layout.tensor_parallel
        )
        return self.measured.get("kv") or self.measured["tok"] * elements * 2 / GIB

    def term(self, name: str) -> float:
        """GiB of one of the plan's terms; 0 where it has none."""
        return sum(t.bytes for t in self.plan.engine.terms if t.name == name) / GIB

    @property
    def sequences_times_vocabulary(self) -> float:
        """What the sampler's buffers grow with."""
        sequences = self.plan.request.engine.max_num_seqs or 1
        return sequences * self.plan.request.model.shape.vocabulary / GIB

    @property
    def forward(self) -> float:
        """GiB of the profile run's forward."""
        peak = next(t for t in self.plan.engine.terms if t.name == "engine activations")
        return float(peak.inputs["forward"] or 0) / GIB


@dataclass(frozen=True)
class Memory:
    """The constants that logs set."""

    sampler: float
    outside: dict[bool, float]
    """Without and with NCCL, as ``engine_memory.NON_TORCH``."""
    graphs: float

    def predict(self, log: Log) -> float:
        """GiB of one card's cache under these constants, the weights as planned."""
        each = self.sampler if log.native else engine_memory.FUSED_SAMPLER_BYTES
        least = engine_memory.LEAST_ACTIVATION / GIB
        peak = max(each * log.sequences_times_vocabulary, log.forward, least)
        engine = log.plan.engine
        share = engine.share / log.plan.layout.tensor_parallel / GIB
        graphs = self.graphs if log.term("CUDA graphs") else 0.0
        outside = self.outside[log.joined]
        return share - log.term("engine weights") - peak - outside - graphs


def logs() -> list[Log]:
    """Startup logs of models and engines that are planned."""
    found = []
    for entry in of("vllm_startup"):
        try:
            plan = make_plan(*startup_request(entry))
        except NotPlannedError:
            continue
        if minor_of(entry) >= OLDEST:
            unused = bool(entry.get("held_out"))
            found.append(Log(entry["id"], plan, entry["measured"], unused))
    return found


def fit(data: Sequence[Log]) -> Memory:
    """Medians, which one strange log does not move."""
    peaks = [
        log.measured["act"] / log.sequences_times_vocabulary
        for log in data
        if "act" in log.measured and log.native and _sampler_leads(log)
    ]
    # Few logs of several cards print it, so there what the share leaves unexplained counts too.
    outside = {
        joined: [x.outside for x in data if x.joined == joined and (joined or "nt" in x.measured)]
        for joined in (False, True)
    }
    graphs = [log.measured["graph"] for log in data if log.measured.get("graph", -1) > 0]
    medians = {joined: median(values) for joined, values in outside.items()}
    return Memory(median(peaks), medians, median(graphs))


def _sampler_leads(log: Log) -> bool:
    """Whether the sampler is what the profile run's peak is, with room to spare."""
    return engine_memory.SAMPLER_BYTES * log.sequences_times_vocabulary > 1.2 * log.forward


def startup_crossvalidation() -> list[dict[str, object]]:
    """Errors of large caches under the fit, with the log left out, and on logs held out."""
    data = [log for log in logs() if not log.unused and log.cache >= 5]
    every = [log for log in logs() if not log.unused]
    found = fit(every)
    rest = [fit([log for log in every if log.id != one.id]) for one in data]
    held = [log for log in logs() if log.unused and log.cache >= 5]
    return [
        _summary("all rows", [found.predict(log) / log.cache for log in data]),
        _summary(
            "all but the row",
            [one.predict(log) / log.cache for one, log in zip(rest, data, strict=True)],
        ),
        _summary("never on its like", [found.predict(log) / log.cache for log in held]),
    ]


def _summary(fitted: str, ratios: Sequence[float]) -> dict[str, object]:
    sizes = [100 * abs(ratio - 1) for ratio in ratios]
    return {
        "what": "cache of 5 GiB and more",
        "fitted on": fitted,
        "rows": len(sizes),
        "median": f"{median(sizes):.1f} %",
        "spread": f"{np.sqrt(np.mean(np.log(ratios) ** 2)):.3f}",
        "worst": f"{max(sizes):.1f} %",
    }


def spreads() -> list[dict[str, object]]:
    """The spread of each term around its log: that of the normal distribution whose band of 90 %
    is the logs' own, a tenth of which lie farther out."""
    data = [log for log in logs() if not log.unused]
    found = fit(data)

    def ratios(key: str, name: str, *, four_bit: bool | None = None) -> list[float]:
        return [
            log.measured[key] / log.term(name) - 1
            for log in data
            if key in log.measured and (four_bit is None or four_bit == (_dtype(log) == "nf4"))
        ]

    outside = [
        log.outside - found.outside[log.joined]
        for log in data
        if not log.joined and "nt" in log.measured
    ]
    nccl = [log.outside - found.outside[log.joined] for log in data if log.joined]
    rows = {
        "weights, 16 and 8 bit, share": (
            ratios("w", "engine weights", four_bit=False),
            bands.PLAIN_WEIGHT_SPREAD,
        ),
        "weights, 4 bit, share": (
            ratios("w", "engine weights", four_bit=True),
            bands.WEIGHT_SPREAD["nf4"],
        ),
        "activations, share": (ratios("act", "engine activations"), bands.ACTIVATION_SPREAD),
        "outside torch, one card, GiB": (outside, bands.NON_TORCH_SPREAD[False] / GIB),
        "outside torch with NCCL, GiB": (nccl, bands.NON_TORCH_SPREAD[True] / GIB),
    }
    return [
        {
            "term": name,
            "logs": len(values),
            "middle": f"{np.median(np.abs(values)):.3f}",
            "spread": f"{np.quantile(np.abs(values), 0.9) / bands.QUANTILE_90:.3f}",
            "shipped": f"{shipped:.3f}",
        }
        for name, (values, shipped) in rows.items()
    ]


def _dtype(log: Log) -> str:
    return engine_memory.served_dtype(log.plan.request)


if __name__ == "__main__":
    print(fit([log for log in logs() if not log.unused]))
    print(table(spreads()))
    print(table(startup_crossvalidation()))
