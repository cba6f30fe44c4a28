"""The policy: the one model that is trained and sampled from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from roost.model.attention import AttentionLayout
from roost.model.head import OutputHead


class Policy:
    """A causal language model with a version number that rises at each optimizer step.

    Owns the module and the version. The trainer writes its parameters, the embedded engine reads
    them; nobody holds a second copy.

    Args:
        module: A transformers causal LM loaded with ``attn_implementation="roost"``, or a
            ``PeftModel`` around one.
        version: How many optimizer steps have been applied.
    """

    def __init__(self, module: nn.Module, version: int = 0) -> None:
        self.module = module
        self.version = version
        self.lock = threading.Lock()
        """Held while weights change, and by who reads them from another thread meanwhile."""
        self.is_adapter = hasattr(module, "peft_config")
        base = module.get_base_model() if self.is_adapter else module  # type: ignore[operator]
        self.base: Any = base
        """The causal LM inside an adapter, or the module itself."""
        self.decoder: nn.Module = base.get_decoder()  # type: ignore[operator]
        """The layers without the output head."""
        self.head = OutputHead.of(base)

    @property
    def config(self) -> Any:
        """The transformers configuration of the language model."""
        return self.base.config.get_text_config()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.module.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Working precision: that of the embedding, which an adapter never changes."""
        weight: Tensor = self.base.get_input_embeddings().weight
        return weight.dtype

    def trainable_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters that training changes, by name, in the module's order; tied ones once."""
        return {n: p for n, p in self.module.named_parameters() if p.requires_grad}

    def hidden_states(
        self, token_ids: Tensor, positions: Tensor, layout: AttentionLayout
    ) -> Tensor:
        """Final hidden states ``[tokens, hidden]`` of a pack.

        Args:
            token_ids: ``[tokens]`` int64.
            positions: ``[tokens]`` int64, each token's position within its own sequence.
            layout: What each token may attend to.
        """
        output = self.decoder(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            roost_layout=layout,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Within it the module computes the model before training: the adapter is switched off.

        Only for adapters; full training keeps a frozen copy elsewhere.
        """
        disabled = self.module.disable_adapter() if self.is_adapter else nullcontext()  # type: ignore[operator]
        with disabled:
            yield
