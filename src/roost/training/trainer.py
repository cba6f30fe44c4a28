"""The training step: scored groups in, updated weights out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from roost.algorithm.losses import LossCounts
from roost.algorithm.mismatch import Mismatch, lag_sums
from roost.algorithm.objective import objective
from roost.config import RunConfig
from roost.errors import ModelError
from roost.model.policy import Policy
from roost.samples import Group
from roost.training.attention import PackLayout
from roost.training.batch import TrainBatch, TrainSample, keep_scores
from roost.training.logprobs import token_logprobs
from roost.training.optimizer import MasterOptimizer, learning_rate
from roost.training.packing import Pack
from roost.training.parallel import ALONE, Ranks
from roost.training.shared_prompt import SharedPrompt
from roost.training.sums import LARGEST, Sums, add, compare, metrics_of

PROOF_SAMPLES = 4
"""Samples that are scored to compare engine and trainer where none needs training."""


class Trainer:
    """Updates a policy from groups of scored samples.

    Owns the optimizer and the count of rollout batches, which the learning rate follows.

    Args:
        policy: What is trained; its version rises by one at each optimizer step.
        config: The run.
        micro_batch_tokens: Most tokens of one forward and backward.
        reference: The frozen model that the KL is taken to; with an adapter None, since the
            policy with its adapter off is the reference.
        ranks: The processes that train this policy; each computes a share of every gradient.
    """

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        *,
        micro_batch_tokens: int,
        reference: Policy | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy = policy
        self.ranks = ranks
        self.config = config
        self.correction = config.decided_correction
        self.micro_batch_tokens = micro_batch_tokens
        self.reference = reference
        self.batches = 0
        """Rollout batches trained on."""
        self.mismatch = Mismatch()
        """Of the last batch, over all ranks: the engine's numbers against the trainer's."""
        self.optimizer = MasterOptimizer(policy.trainable_parameters(), config.train)
        _prepare_module(policy, config)

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """Train on a rollout batch, the same on every rank; returns its metrics.

        With one update a batch the policy is the one that sampled, and the ratio is 1 with a
        gradient; with more, log-probabilities are taken once before the first.
        """
        train = self.config.train
        batch = TrainBatch.of(groups, self.config)
        sums = Sums(float)
        add(sums, lag_sums(batch.lag(self.policy.version)))
        self._prove_unmoving(batch, sums)
        if self.config.loss.beta > 0:
            self._score_reference(self._own(batch))
        if train.num_iterations * train.updates_per_batch > 1:
            self._score_old(self._own(batch))
        rate = learning_rate(self.batches, self.config.peak_learning_rate, train)
        steps: list[dict[str, float]] = []
        with self.policy.lock:
            for _ in range(train.num_iterations):
                for part in batch.parts:
                    self.optimizer.zero_grad()
                    self.accumulate(batch, part, sums)
                    self.ranks.sum_gradients(self.optimizer.gradients())
                    steps.append(self.optimizer.step(rate))
                    self.policy.version += 1
        self.batches += 1
        sums = Sums(float, self.ranks.sum(sums, LARGEST, "the sums of the metrics"))
        self.mismatch = Mismatch.of(sums)
        return {"learning_rate": rate, **metrics_of(sums, steps, batch)}

    def accumulate(self, batch: TrainBatch, part: Sequence[TrainSample], sums: Sums) -> None:
        """Add the gradient of one update's samples, a pack at a time.

        Samples that cannot move a weight (advantage 0 and no KL) are counted in the weights and
        not computed.
        """
        counts = batch.counts(part)
        moving = self._share(part)
        self.policy.module.train()
        for prompt, packs in self._packs(self.policy, batch, moving):
            for pack in packs:
                members = [moving[index] for index in pack.samples]
                self._backward(batch, pack, prompt, members, counts, sums)
            if prompt is not None:
                prompt.backward()
                sums["computed"] += prompt.length
        self.policy.module.eval()

    def _packs(
        self, policy: Policy, batch: TrainBatch, samples: Sequence[TrainSample]
    ) -> Iterator[tuple[SharedPrompt | None, Iterable[Pack]]]:
        """Packs of some samples, those of a divided group together with its prompt."""
        packs = batch.packs(samples, self.micro_batch_tokens)
        for group, pieces in groupby(packs, key=lambda pack: pack.divided):
            if group is None:
                yield None, pieces
            else:
                yield SharedPrompt(policy, batch.groups[group].prompt.token_ids), pieces

    def _share(self, part: Sequence[TrainSample]) -> list[TrainSample]:
        """What this rank computes of an update: neighbours, which share prompts."""
        moving = [sample for sample in part if self._moves(sample)]
        return self.ranks.stretch(moving, [len(s.sample.token_ids) for s in moving])

    def _own(self, batch: TrainBatch) -> TrainBatch:
        """The batch with the samples alone that this rank computes."""
        return replace(batch, samples=[s for part in batch.parts for s in self._share(part)])

    def _moves(self, sample: TrainSample) -> bool:
        """Whether a sample can change a weight."""
        return sample.sample.advantage != 0.0 or self.config.loss.beta > 0

    def _prove_unmoving(self, batch: TrainBatch, sums: Sums) -> None:
        """Where no sample moves a weight, score a few all the same.

        An engine gone wrong may earn nothing but equal rewards, and must not go unnoticed for it.
        """
        if any(self._moves(sample) for sample in batch.samples):
            return
        own = self.ranks.divide(batch.samples, [1.0] * len(batch.samples))
        few = replace(batch, samples=own[:PROOF_SAMPLES])
        counts = batch.counts(batch.samples)
        for sample, logprobs in zip(few.samples, self.logprobs(self.policy, few), strict=True):
            tokens = batch.token_batch([sample], counts, logprobs.device)
            compare(logprobs, tokens, self.correction, sums)
            keep_scores([sample], logprobs)

    def _backward(
        self,
        batch: TrainBatch,
        pack: Pack,
        prompt: SharedPrompt | None,
        members: Sequence[TrainSample],
        counts: LossCounts,
        sums: Sums,
    ) -> None:
        tokens = batch.token_batch(members, counts, self.policy.device)
        logprobs, entropy = self.score(self.policy, pack, prompt)
        # Under the weights that sampled, which the first update of several leaves behind.
        sampled_under = logprobs.detach() if tokens.old_logprobs is None else tokens.old_logprobs
        correction = compare(sampled_under, tokens, self.correction, sums)
        keep_scores(members, sampled_under)
        loss, pack_sums = objective(logprobs, entropy, tokens, self.config.loss, correction)
        loss.backward()  # type: ignore[no-untyped-call]
        held = len(pack) + (0 if prompt is None else prompt.length)
        add(sums, {**pack_sums, "computed": len(pack), "computed_at_once": held})

    def score(
        self, policy: Policy, pack: Pack, prompt: SharedPrompt | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy ``[tokens]`` of a pack's completion tokens.

        ``prompt`` is given with a piece of a divided group.
        """
        device = policy.device
        ids, positions, reads, targets = pack.tensors(device)
        if prompt is None:
            hidden = policy.hidden_states(ids, positions, PackLayout(pack.segments, device))
        else:
            layout = PackLayout(pack.segments, device, prompt.keys_values, prompt.length)
            hidden = torch.cat([policy.hidden_states(ids, positions, layout), prompt.last])
        weight_sum = self.optimizer.gradient_of(policy.head.weight)
        temperature = self.config.rollout.temperature
        return token_logprobs(hidden[reads], policy.head, targets, temperature, weight_sum)

    @torch.no_grad()
    def logprobs(self, policy: Policy, batch: TrainBatch) -> list[Tensor]:
        """Of each sample, its tokens' log-probabilities ``[tokens]`` under a policy."""
        results: dict[int, Tensor] = {}
        for prompt, packs in self._packs(policy, batch, batch.samples):
            for pack in packs:
                flat, _ = self.score(policy, pack, prompt)
                lengths = [len(batch.samples[index].sample.token_ids) for index in pack.samples]
                results.update(zip(pack.samples, torch.split(flat, lengths), strict=True))
        return [results[index] for index in range(len(batch.samples))]

    def _score_old(self, batch: TrainBatch) -> None:
        for sample, logprobs in zip(batch.samples, self.logprobs(self.policy, batch), strict=True):
            sample.old_logprobs = logprobs

    def _score_reference(self, batch: TrainBatch) -> None:
        scorer = self.reference or self.policy
        with self.policy.reference() if self.reference is None else nullcontext():
            scores = self.logprobs(scorer, batch)
        for sample, logprobs in zip(batch.samples, scores, strict=True):
            sample.reference_logprobs = logprobs

    def counters(self) -> dict[str, int]:
        """What a checkpoint needs besides the optimizer's tensors."""
        return {"batches": self.batches, "non_finite": self.optimizer.non_finite}

    def load_counters(self, counters: dict[str, Any]) -> None:
        """Take what ``counters`` gave."""
        self.batches = counters["batches"]
        self.optimizer.non_finite = counters["non_finite"]


def _prepare_module(policy: Policy, config: RunConfig) -> None:
    """Checkpointing as asked, and no dropout, which would score other than was sampled.

    Raises:
        ModelError: the model has dropout that cannot be seen through its modules.
    """
    for module in policy.module.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if float(getattr(policy.config, "attention_dropout", 0.0) or 0.0) > 0.0:
        raise ModelError("the model's attention_dropout is not 0; set it to 0 in its config.json")
    _spare_embedding_gradients(policy)
    if config.train.gradient_checkpointing:
        policy.base.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )


def _spare_embedding_gradients(policy: Policy) -> None:
    """On a CPU, have a pack's gradient to the embedding hold its own tokens' rows alone.

    Elsewhere not: their sum is deterministic on a CPU only.
    """
    embedding = policy.base.get_input_embeddings()
    if policy.device.type == "cpu" and isinstance(embedding, torch.nn.Embedding):
        embedding.sparse = True
