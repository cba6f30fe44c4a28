"""KL divergence to the reference, estimated token by token."""

from __future__ import annotations

import torch
from torch import Tensor


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``exp(ref - logp) - (ref - logp) - 1``: unbiased and never negative.

    Schulman, "Approximating KL divergence" (http://joschu.net/blog/kl-approx.html).
    """
    difference = reference - logprobs
    # Not exp() - 1, which in float32 is rounding alone where policy and reference are close.
    return torch.expm1(difference) - difference
