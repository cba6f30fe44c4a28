"""The output head: hidden states to logits, with what architectures add on top."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class OutputHead:
    """``logits = softcap(scale * (hidden @ weight.T + bias))``, from the model's own parameters."""

    linear: nn.Linear
    """The head; its weight may be tied to the embedding."""
    softcap: float | None = None
    """Gemma 2's final soft cap."""
    scale: float = 1.0
    """Cohere's ``logit_scale``, or 1 / Granite's ``logits_scaling``."""

    @classmethod
    def of(cls, model: Any) -> OutputHead:
        """The head of a transformers causal LM."""
        config = model.config.get_text_config()
        scale = float(getattr(config, "logit_scale", None) or 1.0)
        scale /= float(getattr(config, "logits_scaling", None) or 1.0)
        softcap = getattr(config, "final_logit_softcapping", None)
        return cls(model.get_output_embeddings(), softcap=softcap, scale=scale)

    @property
    def weight(self) -> Tensor:
        """``[vocabulary, hidden]``."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """``[vocabulary]``, or None."""
        return self.linear.bias

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits ``[tokens, vocabulary]`` of hidden states ``[tokens, hidden]``.

        The product is taken in the working precision, as the trainer takes it, so that engine and
        trainer score alike; only then is it widened.
        """
        logits = self.linear(hidden).float()
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)
