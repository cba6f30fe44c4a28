"""The checks by name, in the order in which they run, and how they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from roost.errors import ConfigError
from roost.gpu_check.results import CheckFailed, Found, NotHere, Verdict
from roost.run.display import Display
from roost.self_check import laws, sync
from roost.self_check.subject import Subject
from roost.self_check.trial import Trial, open_trial
from roost.training.launched import world_size


def _always(trial: Trial) -> None:
    """It is for every run."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    run: Callable[[Trial], Found]
    """What it does; raises where it is not content."""
    why_not: Callable[[Trial], str | None]
    """Why it is not for this run; None where it is."""


CHECKS = (
    Check("agreement", laws.agreement, _always),
    Check("zero-advantage", laws.zero_advantage, _always),
    Check("learning-rate-0", laws.learning_rate_0, _always),
    Check("dropped-tensor", sync.dropped_tensor, sync.why_not),
    Check("swapped-pair", sync.swapped_pair, sync.why_not),
    Check("zeroed-tensor", sync.zeroed_tensor, sync.why_not),
    Check("flipped-bit", sync.flipped_bit, sync.why_not),
    Check("stale-weights", sync.stale_weights, sync.why_not_full),
    Check("stale-adapter", sync.stale_adapter, sync.why_no_adapter),
    Check("skipped-sync", sync.skipped_sync, sync.why_not),
    Check("wake-without-sync", sync.wake_without_sync, sync.why_awake),
    Check("base-weight-changed", sync.base_weight_changed, sync.why_no_adapter),
    Check("adapter-counted-twice", sync.adapter_counted_twice, sync.why_no_adapter),
    Check("healthy-sync", sync.healthy_sync, sync.why_not),
)
"""Laws first, before a weight is moved; then each fault; then a sync without one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a check."""

    name: str
    verdict: Verdict
    detail: str
    """One line: figures, the words of an error, or why it was skipped."""

    def line(self) -> str:
        """For a person.

        >>> Outcome("agreement", Verdict.OK, "3e-07 nats a token apart").line()
        'ok       agreement              3e-07 nats a token apart'
        """
        said = "FAILED" if self.verdict is Verdict.FAILED else self.verdict.value
        return f"{said:<8} {self.name:<22} {self.detail}"

    def as_dict(self) -> dict[str, str]:
        """For ``--json``."""
        return {**asdict(self), "verdict": self.verdict.value}


def run_checks(subject: Subject, display: Display) -> Iterator[Outcome]:
    """Load the run and try each check on it, one after the other.

    Args:
        subject: What is checked.
        display: Told what is loaded.

    Raises:
        RoostError: it cannot be loaded, or several processes were started.
    """
    if world_size() > 1:
        raise ConfigError(
            f"torchrun started {world_size()} processes, and a check takes one. Start it without "
            "torchrun."
        )
    with open_trial(subject, display) as trial:
        for check in CHECKS:
            yield outcome_of(check, trial)


def outcome_of(check: Check, trial: Trial) -> Outcome:
    """Try one check. Whatever it raises is its own failure: the others may still say more."""
    reason = check.why_not(trial)
    if reason is not None:
        return Outcome(check.name, Verdict.SKIPPED, reason)
    try:
        return _outcome(check, Verdict.OK, check.run(trial).detail)
    except NotHere as missing:
        return _outcome(check, Verdict.SKIPPED, str(missing))
    except CheckFailed as failed:
        return _outcome(check, Verdict.FAILED, str(failed))
    except Exception as error:  # noqa: BLE001 - it is told, as the check's verdict
        return _outcome(check, Verdict.FAILED, f"{type(error).__name__}: {error}")


def _outcome(check: Check, verdict: Verdict, detail: str) -> Outcome:
    """On one line, also where an error lists what it found."""
    listed = detail.replace(":\n  - ", ": ").replace("\n  - ", "; ")
    return Outcome(check.name, verdict, " ".join(listed.split()))
