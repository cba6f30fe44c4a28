"""The training step of trainers that pad, at its best: what Roost's packs are measured against.

Each completion with its prompt is a row, rows are padded to the longest of their micro-batch, and
logits are taken for completion tokens only. Rows are sorted by length first, which keeps padding
low. Loss, recomputation of activations and the kind of optimizer are the same as Roost's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from roost.config import RunConfig
from roost.model.loading import quiet_transformers
from roost.samples import Group, Sample
from roost.training.adapters import add_adapter

ROWS = 8
"""Of a micro-batch."""


class PaddedTrainer:
    """A plain trainer on transformers' own attention.

    Args:
        location: The model's folder or hub id.
        config: The run that Roost does: its method, adapter and learning rate.
        dtype: Of the weights.
        device: Where they are.
    """

    def __init__(
        self, location: str, config: RunConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        with quiet_transformers():
            module: Any = AutoModelForCausalLM.from_pretrained(location, dtype=dtype)
        module.to(device)
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if config.train.method == "lora":
            module = add_adapter(module, config.lora, seed=config.seed)
        self.module: Any = module.train()
        self._device = device
        self._optimizer = torch.optim.AdamW(
            [p for p in self.module.parameters() if p.requires_grad],
            lr=config.peak_learning_rate,
            weight_decay=config.train.weight_decay,
        )

    def update(self, groups: Sequence[Group]) -> None:
        """One optimizer step on some groups, whose prompts are of one length."""
        self._optimizer.zero_grad()
        pairs = [(group.prompt.token_ids, sample) for group in groups for sample in group.samples]
        pairs.sort(key=lambda pair: len(pair[1].token_ids))
        total = sum(len(sample.token_ids) for _, sample in pairs)
        for start in range(0, len(pairs), ROWS):
            self._micro_batch(pairs[start : start + ROWS], total)
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self._optimizer.step()

    def _micro_batch(self, pairs: Sequence[tuple[tuple[int, ...], Sample]], total: int) -> None:
        width = max(len(sample.token_ids) for _, sample in pairs)
        completions = torch.zeros(len(pairs), width, dtype=torch.int64)
        mask = torch.zeros(len(pairs), width)
        for row, (_, sample) in enumerate(pairs):
            count = len(sample.token_ids)
            completions[row, :count] = torch.tensor(sample.token_ids)
            mask[row, :count] = 1.0
        prompts = torch.tensor([prompt for prompt, _ in pairs])
        attention = torch.cat([torch.ones_like(prompts), mask.long()], dim=1)
        ids = torch.cat([prompts, completions], dim=1)
        logits = self.module(
            input_ids=ids.to(self._device),
            attention_mask=attention.to(self._device),
            logits_to_keep=width + 1,
            use_cache=False,
        ).logits[:, :-1]
        chosen = completions.to(self._device).unsqueeze(2)
        logprobs = logits.float().log_softmax(-1).gather(2, chosen).squeeze(2)
        advantages = torch.tensor([sample.advantage for _, sample in pairs]).unsqueeze(1)
        ratio = torch.exp(logprobs - logprobs.detach())
        loss: Any = -(ratio * (advantages * mask).to(self._device)).sum() / total
        loss.backward()
