"""The proof that runs with every step: the trainer finds what the engine said it sampled with."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from roost.errors import EngineError

LIMITS = {torch.float32: 1e-2, torch.bfloat16: 0.25}
"""Mean absolute difference of log-probabilities, in nats a token, beyond which something is wrong
and not merely rounded. Rounding measures 3e-7 in float32 and, where engine and trainer use
different kernels, up to several hundredths in bfloat16."""


def check_agreement(metrics: Mapping[str, float], dtype: torch.dtype) -> None:
    """Stop where the engine sampled from other weights, or computes something else.

    Args:
        metrics: Of a step.
        dtype: The working precision.

    Raises:
        EngineError: naming the difference and the limit.
    """
    if not metrics["tokens/trained"]:
        return
    difference, limit = metrics["sampling/logp_difference_mean"], LIMITS[dtype]
    if not difference <= limit:
        raise EngineError(
            f"step {metrics['step']}: the trainer's log-probabilities of the sampled tokens differ "
            f"from the engine's by {difference:.3g} nats a token on average, where rounding in "
            f"{str(dtype).removeprefix('torch.')} stays below {limit}. The engine samples from "
            "other weights than those being trained, or computes them wrongly: nothing learnt "
            "from its samples could be trusted. Resume from the last checkpoint, and report it "
            "with the model's name if it comes again."
        )
