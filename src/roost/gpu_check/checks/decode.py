"""Decoding on a GPU: its kernels, its recorded steps, and how often the host waits for it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from roost.config.loading import build_config
from roost.engines.embedded import EmbeddedEngine
from roost.engines.embedded.cache import LayerShape, SlotCache
from roost.engines.embedded.decoders import Decoder, Decoding
from roost.engines.embedded.fixed import FixedDecoder
from roost.engines.embedded.kernels import choose_kernel, distance
from roost.engines.protocol import SamplingParams
from roost.gpu_check.groups import random_groups
from roost.gpu_check.models import SMALL_MODELS, device_of, real_model, small_model
from roost.gpu_check.results import Found, NotHere, Place, require
from roost.model.loading import load_policy
from roost.model.policy import Policy
from roost.samples import Prompt

CACHE_BYTES = 2**33
"""A bound; the engine allocates what the samples need."""
RECORDABLE = ("llama", "qwen3", "mistral", "gemma2")
"""Models whose steps never wait for the GPU; experts may be chosen on the host."""
HEADS = (64, 128, 256)
"""Widths of the heads of common models."""


@dataclass(frozen=True, slots=True)
class _Noting(Decoding):
    """Keeps the decoders that it makes, to ask them afterwards."""

    made: list[Decoder] = field(default_factory=list)

    def decoder(self, policy: Policy, prompts: SlotCache, own: SlotCache) -> Decoder:
        """See ``Decoding``."""
        self.made.append(Decoding.decoder(self, policy, prompts, own))
        return self.made[-1]


Drawn = dict[tuple[int, int], tuple[list[int], list[float]]]
"""Tokens and their log-probabilities of every sample."""


def kernels(place: Place) -> Found:
    """Attention over cache slots has a kernel here that gives what the definition gives."""
    device = device_of(place)
    if device.type != "cuda":
        raise NotHere("a CPU decodes with a kernel of its own; this is about those of GPUs")
    figures: dict[str, Any] = {}
    for width in HEADS:
        shape = LayerShape(8, width, width)
        choice = choose_kernel([shape], torch.bfloat16, device)
        require(choice.kernel is not None, f"heads of {width}: {choice.reason}")
        assert choice.kernel is not None
        figures[str(width)] = distance(choice.kernel, shape, torch.bfloat16, device)
        name = choice.kernel.name
    off = ", ".join(f"{width}: {value:.1g}" for width, value in figures.items())
    return Found(f"{name}; off the definition for heads of {off}", figures)


def decode(place: Place) -> Found:
    """Recorded steps draw what steps that are run draw; on a CPU, fixed shapes what any draw."""
    device = device_of(place)
    figures: dict[str, Any] = {}
    for architecture in SMALL_MODELS:
        for dtype in (torch.float32, torch.bfloat16):
            if dtype is torch.bfloat16 and device.type == "cpu":
                continue  # Other shapes of products may round otherwise.
            policy = Policy(small_model(architecture, device, dtype))
            recorded = _compare(policy, place, f"{architecture}, {dtype}")
            if device.type == "cuda" and architecture in RECORDABLE:
                require(recorded == "", f"{architecture}: not recorded: {recorded}")
            figures[f"{architecture} {dtype}"] = recorded or "recorded"
    told = f"{len(figures)} models draw the same tokens"
    if device.type != "cuda":
        return Found(f"{told} in fixed shapes as in any", figures)
    waits = _waits(Policy(small_model("llama", device, torch.bfloat16)), place)
    require(waits <= 1.05, f"the host waits {waits:.2f} times a step for the GPU")
    figures["waits_a_step"] = waits
    seconds = _seconds(place)
    figures |= seconds
    return Found(
        f"{told} recorded as not; {waits:.2f} waits a step; Qwen3-0.6B, 64 rows: "
        f"{1e3 * seconds['recorded_step_s']:.2f} ms a step recorded, "
        f"{1e3 * seconds['run_step_s']:.2f} ms not",
        figures,
    )


def _compare(policy: Policy, place: Place, what: str) -> str:
    """Draw twice and require the same; returns why steps were not recorded."""
    if policy.device.type == "cpu":
        fixed = Decoding(True, Decoding.of(policy, []).choice, recorded=False)
        one, other = _drawn(policy, place, None), _drawn(policy, place, fixed)
        _same({key: drawn[0] for key, drawn in one.items()}, other, what, tokens_only=True)
        return "no recorder"
    chosen = EmbeddedEngine(policy, None, cache_bytes=CACHE_BYTES).decoding
    run = Decoding(True, chosen.choice, recorded=False)
    noting = _Noting(True, chosen.choice, recorded=True)
    one, other = _drawn(policy, place, run), _drawn(policy, place, noting)
    _same(one, other, what, tokens_only=False)
    (decoder,) = noting.made
    assert isinstance(decoder, FixedDecoder)
    require(bool(decoder.recordings) or decoder.not_recorded != "", f"{what}: nothing was recorded")
    return decoder.not_recorded


def _same(one: Any, other: Drawn, what: str, *, tokens_only: bool) -> None:
    found = {key: drawn[0] for key, drawn in other.items()} if tokens_only else other
    different = [key for key in one if one[key] != found[key]]
    require(not different, f"{what}: {len(different)} of {len(one)} samples differ")


def _drawn(policy: Policy, place: Place, decoding: Decoding | None) -> Drawn:
    """Samples that end at different times, so that widths and slots change."""
    prompts = [group.prompt for group in random_groups([9, 1, 40, 3], [[], [], [], []])]
    budget = 24 if place.small else 100
    sampling = SamplingParams(budget, stop_token_ids=frozenset(range(20)))
    engine = EmbeddedEngine(policy, None, cache_bytes=CACHE_BYTES, decoding=decoding)
    samples = engine.generate(prompts, 4, sampling, seed=3, step=1)
    return {(s.prompt_id, s.index): (s.token_ids, s.logprobs) for s in samples}


def _waits(policy: Policy, place: Place) -> float:
    """How often a decode step waits for the GPU, by torch's own count."""
    engine = EmbeddedEngine(policy, None, cache_bytes=CACHE_BYTES)
    prompts = [group.prompt for group in random_groups([9, 7], [[], []])]
    counts = []
    for tokens in (50, 150):
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                list(engine.generate(prompts, 4, SamplingParams(tokens), seed=0, step=0))
            finally:
                torch.cuda.set_sync_debug_mode(before)
        counts.append(sum("synchronizing" in str(warning.message) for warning in seen))
    # What begins and ends a call is the same in both.
    return (counts[1] - counts[0]) / 100


def _seconds(place: Place) -> dict[str, float]:
    """Of a step of 64 rows, recorded and not, by two calls of different length each."""
    folder = real_model("Qwen3-0.6B", place)
    policy, _ = load_policy(build_config({"model": str(folder)}).model)
    prompts = [group.prompt for group in random_groups([64] * 8, [[]] * 8)]
    engine = EmbeddedEngine(policy, None, cache_bytes=CACHE_BYTES)
    run = Decoding(True, engine.decoding.choice, recorded=False)
    slow = EmbeddedEngine(policy, None, cache_bytes=CACHE_BYTES, decoding=run)
    return {
        "recorded_step_s": _step_seconds(engine, prompts),
        "run_step_s": _step_seconds(slow, prompts),
    }


def _step_seconds(engine: EmbeddedEngine, prompts: Sequence[Prompt]) -> float:
    taken = []
    for tokens in (32, 32, 160):  # The first warms up.
        start = time.perf_counter()
        list(engine.generate(prompts, 8, SamplingParams(tokens), seed=0, step=0))
        taken.append(time.perf_counter() - start)
    return (taken[2] - taken[1]) / 128
