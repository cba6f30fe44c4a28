"""The proof that runs with every step: the trainer finds what the engine said it sampled with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from roost.algorithm.mismatch import Mismatch
from roost.errors import EngineError
from roost.run.diagnosis import diagnose

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
