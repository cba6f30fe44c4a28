"""The checks by name, in the order in which they run: what is quick and basic first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roost.errors import ConfigError, did_you_mean

_CHECKS = "roost.gpu_check.checks"


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    title: str
    """What holds where it is content."""
    runner: str
    """``module:function``, of a ``Place`` to a ``Found``."""
    deadline_s: float
    small: bool = True
    """Whether it is part of ``--small``."""


CHECKS = {
    check.name: check
    for check in (
        Check(
            "doctor", "roost doctor finds no fault on this machine", f"{_CHECKS}.machine:doctor", 90
        ),
        Check(
            "packing",
            "packed log-probabilities and gradients are the padded ones",
            f"{_CHECKS}.laws:packing",
            60,
        ),
        Check(
            "split",
            "a batch's gradient does not depend on its division into micro-batches",
            f"{_CHECKS}.laws:split",
            45,
        ),
        Check(
            "on-policy",
            "engine and trainer score the same tokens alike",
            f"{_CHECKS}.laws:on_policy",
            60,
        ),
        Check(
            "idle",
            "no learning rate moves no weight, no advantage gives no gradient",
            f"{_CHECKS}.laws:idle",
            45,
        ),
        Check("base", "training an adapter changes no base weight", f"{_CHECKS}.laws:base", 45),
        Check(
            "kernels",
            "attention over cache slots has a kernel that is right",
            f"{_CHECKS}.decode:kernels",
            45,
            small=False,
        ),
        Check(
            "decode",
            "recorded decode steps draw the same tokens, and wait once a step",
            f"{_CHECKS}.decode:decode",
            90,
        ),
        Check(
            "resume",
            "a run stopped and resumed ends as one that was not",
            f"{_CHECKS}.runs:resume",
            90,
        ),
        Check(
            "plan-memory",
            "the peaks of a run are those of its plan",
            f"{_CHECKS}.runs:plan_memory",
            90,
        ),
        Check(
            "bench-generate",
            "tokens a second beside the floor and rivals",
            f"{_CHECKS}.speed:generate",
            120,
        ),
        Check(
            "bench-step",
            "seconds of a whole GRPO step beside rivals",
            f"{_CHECKS}.speed:step",
            150,
        ),
        Check(
            "sync-full",
            "all weights reach vLLM, proven; a flipped bit is refused",
            f"{_CHECKS}.vllm:sync_full",
            90,
            small=False,
        ),
        Check(
            "sync-lora",
            "an adapter reaches vLLM, proven; a stale one is refused",
            f"{_CHECKS}.vllm:sync_lora",
            90,
            small=False,
        ),
        Check(
            "sleep-1",
            "vLLM asleep at level 1 gives back what is planned, and wakes unchanged",
            f"{_CHECKS}.vllm:sleep_1",
            90,
            small=False,
        ),
        Check(
            "sleep-2",
            "vLLM asleep at level 2 gives back what is planned, and wakes unchanged",
            f"{_CHECKS}.vllm:sleep_2",
            90,
            small=False,
        ),
    )
}


def choose(names: Sequence[str], *, small: bool) -> list[Check]:
    """The checks of these names; all, or with ``small`` the quick ones, where none is named.

    Raises:
        ConfigError: there is no check of a name.
    """
    for name in names:
        if name not in CHECKS:
            raise ConfigError(f"no check {name!r}.{did_you_mean(name, CHECKS)}")
    if names:
        return [CHECKS[name] for name in dict.fromkeys(names)]
    return [check for check in CHECKS.values() if check.small or not small]
