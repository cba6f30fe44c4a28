"""The proof that runs with every step: the trainer finds what the engine said it sampled with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from roost.algorithm.mismatch import Mismatch
from roost.config import RunConfig
from roost.errors import EngineError
from roost.run.diagnosis import diagnose
from roost.samples import Group

LIMITS = {torch.float32: 1e-2, torch.bfloat16: 0.25}
"""Mean absolute difference of log-probabilities, in nats a token, beyond which something is wrong
and not merely rounded. Rounding measures 3e-7 in float32 and, where engine and trainer use
different kernels, up to several hundredths in bfloat16."""


def check_agreement(metrics: Mapping[str, float], mismatch: Mismatch, dtype: torch.dtype) -> None:
    """Stop where the engine sampled from other weights, or computes something else.

    Args:
        metrics: Of a step.
        mismatch: Of its batch.
        dtype: The working precision.

    Raises:
        EngineError: naming the difference, the limit, and what the differences look like.
    """
    if not metrics["tokens/trained"]:
        return
    if mismatch.lag:
        # What the policy has moved since is in the difference as well. The probe of the sync that
        # came before these samples has judged the engine (``sync.proof.PROBE_LIMITS``).
        return
    limit = LIMITS[dtype]
    if not mismatch.mean <= limit:
        raise EngineError(
            f"step {metrics['step']}: the trainer's log-probabilities of the sampled tokens differ "
            f"from the engine's by {mismatch.mean:.3g} nats a token on average, where rounding in "
            f"{str(dtype).removeprefix('torch.')} stays below {limit}. "
            f"{diagnose(mismatch, limit)} Nothing learnt from these samples could be trusted; "
            "resume from the last checkpoint, and report it with the model's name if it comes "
            "again."
        )


def check_versions(groups: Sequence[Group], version: int, config: RunConfig) -> None:
    """Train on no token that is older than ``rollout.staleness`` allows.

    Args:
        groups: Of a step.
        version: Of the policy that is about to be trained.
        config: The run.

    Raises:
        EngineError: naming both versions.
    """
    versions = [v for group in groups for sample in group.samples for v in sample.policy_versions]
    oldest, allowed = min(versions, default=version), config.allowed_lag
    if version - oldest > allowed:
        raise EngineError(
            f"a token was sampled from version {oldest} of the policy, and version {version} is "
            f"about to be trained: rollout.staleness = {config.rollout.staleness} allows a "
            f"distance of {allowed}. The engine missed a sync; resume from the last checkpoint, "
            "and report it if it comes again."
        )
