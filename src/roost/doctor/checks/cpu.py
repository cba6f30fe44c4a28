"""Whether there are CPUs enough, and threads to match them."""

from __future__ import annotations

import math

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings import torch_build
from roost.doctor.readings.machine import cpu_quota, usable_cpus

NAME = "cpu"
CPUS_A_CARD = 2
"""One feeds the card, one runs rewards and tokenizers."""


def check(facts: Facts) -> list[Finding]:
    """Cores that may be used, against the threads that torch starts and the cards."""
    found = [*_threads(facts), *_idle(facts), *_few(facts)]
    return found or [_well(facts)]


def _well(facts: Facts) -> Finding:
    usable = usable_cpus(facts)
    limits = []
    if facts.affinity < facts.cpus:
        limits.append(f"bound to {facts.affinity}")
    if cpu_quota(facts) is not None:
        limits.append(f"a quota of {cpu_quota(facts):g}")
    what = f"{usable:g} of {facts.cpus} CPUs" + (f" ({', '.join(limits)})" if limits else "")
    return Finding(NAME, Level.OK, what, data={"usable": usable, "cpus": facts.cpus})


def _threads(facts: Facts) -> list[Finding]:
    torch, usable = torch_build.build(facts), usable_cpus(facts)
    if torch is None or torch.threads <= math.ceil(usable):
        return []
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"torch starts {torch.threads} threads on {usable:g} CPUs",
            "Threads wait for each other while the kernel holds some of them back; CPU runs slow "
            "down several times over. torch counts the machine's cores, not a container's quota.",
            f"export OMP_NUM_THREADS={max(1, math.floor(usable))}",
            {"threads": torch.threads, "usable": usable},
        )
    ]


def _idle(facts: Facts) -> list[Finding]:
    torch, usable = torch_build.build(facts), usable_cpus(facts)
    # With cards the CPU's threads hardly matter, and torchrun sets this on purpose.
    if torch is None or torch.gpus or torch.threads > 1 or usable < 2:
        return []
    why = "OMP_NUM_THREADS" if "OMP_NUM_THREADS" in facts.env else "a setting"
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"torch uses one thread of {usable:g} CPUs",
            "Without a GPU the model computes on these; the rest of them is idle.",
            f"{why} holds it back: unset OMP_NUM_THREADS MKL_NUM_THREADS",
        )
    ]


def _few(facts: Facts) -> list[Finding]:
    cards, usable = len(torch_build.visible(facts)), usable_cpus(facts)
    if not cards or usable >= CPUS_A_CARD * cards:
        return []
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"{usable:g} CPUs for {cards} cards",
            "Each card needs one to feed it and one for rewards and tokenizers; with fewer, cards "
            "wait.",
            f"Give the job {CPUS_A_CARD * cards} CPUs or more (--cpus, --cpus-per-task, or "
            "limits.cpu).",
            {"usable": usable, "cards": cards},
        )
    ]
