"""The proof that an engine samples with the trainer's weights. Each check names what it found.

Nothing here knows which engine it is: the checks compare what the trainer holds and sent with what
the engine says it received, holds and computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from roost.errors import SyncError
from roost.sync.digest import ZEROS, combined_digest
from roost.sync.names import NameMap

PROBE_LIMITS = {torch.float32: 1e-3, torch.bfloat16: 0.15}
"""Mean absolute difference of a probe's log-probabilities, in nats a token. Rounding measures 1e-6
in float32 and up to several hundredths in bfloat16, where kernels round at other places."""

_LISTED = 5


@dataclass(frozen=True, slots=True)
class Proof:
    """What a sync has shown."""

    version: int
    """The policy's version, which both sides name."""
    digest: str
    """Of all tensors that the engine holds, and the trainer too."""
    tensors: int
    """How many were compared."""
    probe_difference: float
    """Mean absolute difference of the probe's log-probabilities, nats a token."""


def check_written(names: NameMap, received: Sequence[str], written: Iterable[str]) -> None:
    """Each of the trainer's tensors arrived once, and each of the engine's was written.

    Args:
        names: The map of this model.
        received: Names that arrived, in order.
        written: Tensors that the engine says it wrote.

    Raises:
        SyncError: one is missing, came twice, or is unknown.
    """
    counts = Counter(received)
    problems = [f"{name} was not sent" for name in names.sources if name not in counts]
    problems += [f"{name} was sent {n} times" for name, n in counts.items() if n > 1]
    problems += [f"{name} is no tensor of the model" for name in counts.keys() - names.sources]
    problems += [f"{name} was not written" for name in sorted(names.written - set(written))]
    if problems:
        raise SyncError(_refused("is partial", problems))


def check_digests(expected: Mapping[str, str], held: Mapping[str, str]) -> str:
    """Each tensor of the engine is, bit for bit, what the trainer's give.

    Args:
        expected: Digests by the engine's names, of what it should hold.
        held: Of what it holds.

    Returns:
        One digest of all.

    Raises:
        SyncError: naming the tensors that differ, and whether another's content is in their
            place.
    """
    problems = [f"the engine holds no {name}" for name in sorted(expected.keys() - held.keys())]
    problems += [f"the engine's {name} is unknown" for name in sorted(held.keys() - expected)]
    owner = {digest: name for name, digest in expected.items()}
    for name in sorted(expected.keys() & held.keys()):
        if held[name] != expected[name]:
            other = owner.get(held[name])
            content = f", but the content of {other}" if other else ""
            if held[name] == ZEROS:
                content = ", but zeros"
            problems.append(f"{name} is not what was sent{content}")
    if problems:
        raise SyncError(_refused("does not hold what was sent", problems))
    return combined_digest(held)


def check_probe(trainer: Sequence[float], engine: Sequence[float], dtype: torch.dtype) -> float:
    """Both score the same tokens alike.

    Args:
        trainer: Log-probabilities of the probe's tokens, in nats.
        engine: The engine's.
        dtype: The working precision.

    Returns:
        The mean absolute difference.

    Raises:
        SyncError: it exceeds what rounding can do.
    """
    differences = [abs(a - b) for a, b in zip(trainer, engine, strict=True)]
    mean, limit = fmean(differences), PROBE_LIMITS[dtype]
    if not mean <= limit:
        raise SyncError(
            f"after a sync the engine scores a probe {mean:.3g} nats a token away from the "
            f"trainer, where rounding in {str(dtype).removeprefix('torch.')} stays below {limit}: "
            "it computes with other weights, or computes them wrongly. Nothing was sampled with "
            "them."
        )
    return mean


def check_version(policy: int, engine: str) -> None:
    """The engine names the version that the policy has.

    Raises:
        SyncError: it names another: the sync was skipped, or another one came between.
    """
    if engine != str(policy):
        raise SyncError(
            f"the engine holds weights of version {engine!r}, the policy is at version {policy}: "
            "its weights are stale. Sync before sampling."
        )


def _refused(what: str, problems: Sequence[str]) -> str:
    shown = "\n".join(f"  - {problem}" for problem in problems[:_LISTED])
    more = f"\n  - and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
    return f"the sync {what}; nothing was sampled:\n{shown}{more}"
