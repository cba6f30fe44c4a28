"""How the engine treats its resources: streaming, memory, modes, early ends, unfit models."""

from __future__ import annotations

import gc

import pytest
import torch
from engine_support import make_engine, make_prompts, run
from transformers import GptOssConfig, GptOssForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM

from roost.engines.embedded import check_supported
from roost.engines.embedded.cache import SlotCache
from roost.engines.embedded.scheduler import Capacity
from roost.engines.protocol import SamplingParams
from roost.errors import EngineError, ModelError
from roost.model.attention import NAME, register
from roost.model.policy import Policy
from support.small_models import ARCHITECTURES, build

BYTES_PER_TOKEN = 3 * 2 * 2 * 8 * 4


def test_samples_stream_while_others_decode():
    engine = make_engine(build("llama"))
    sampling = SamplingParams(40, stop_token_ids=frozenset(range(5, 15)))
    stream = engine.generate(make_prompts((4, 4, 4)), 4, sampling, seed=0, step=0)
    lengths, active = [], []
    for sample in stream:
        lengths.append(len(sample.token_ids))
        active.append(engine.progress.active)
    assert lengths == sorted(lengths)
    assert len(set(lengths)) > 3
    assert active[0] > 0
    assert active[-1] == 0


def test_nothing_to_do():
    engine = make_engine(build("llama"))
    assert list(engine.generate([], 4, SamplingParams(4), seed=0, step=0)) == []


def test_a_prompt_is_computed_once_for_its_whole_group(monkeypatch):
    """Even where its samples start at different times, for want of room."""
    engine = make_engine(build("llama"), max_sequences=3)
    fed, hidden_states = [], Policy.hidden_states

    def counted(self, ids, *arguments):
        fed.append(len(ids))
        return hidden_states(self, ids, *arguments)

    monkeypatch.setattr(Policy, "hidden_states", counted)
    samples = run(engine, make_prompts((10, 7)), 5, SamplingParams(4))
    drawn = [len(sample.token_ids) for sample in samples.values()]
    # The first token comes from the prompt's own forward; the last is never fed back.
    assert sum(fed) == 10 + 7 + sum(count - 1 for count in drawn)


def test_cache_too_small_for_one_sequence_is_an_error():
    engine = make_engine(build("llama"), cache_bytes=64 * BYTES_PER_TOKEN)
    assert len(run(engine, make_prompts((32,)), 3, SamplingParams(33))) == 3
    with pytest.raises(EngineError, match=r"holds not even one sequence.*36,864.*shorten"):
        run(engine, make_prompts((33,)), 3, SamplingParams(10))


def test_peak_bytes_is_what_the_cache_holds():
    engine = make_engine(build("llama"))
    run(engine, make_prompts((10, 4)), 3, SamplingParams(8))
    # A slot's tokens come in 32s.
    assert engine.peak_bytes == (2 * 32 + 6 * 32) * BYTES_PER_TOKEN


@pytest.mark.parametrize(
    ("cache", "sequences", "expected"),
    [
        (10, None, (2, 8)),
        (5, None, (1, 4)),
        (4, None, (1, 3)),
        (2, None, (1, 1)),
        (100, None, (4, 16)),
        (100, 6, (4, 6)),
        (100, 3, (2, 3)),
    ],
)
def test_capacity(cache, sequences, expected):
    capacity = Capacity.fitting(
        cache,
        prompt_bytes=1,
        completion_bytes=1,
        prompts=4,
        generations=4,
        max_sequences=sequences,
    )
    assert (capacity.groups, capacity.rows) == expected


def test_modes_of_all_modules_are_restored():
    model = build("llama")
    model.train()
    model.model.layers[1].eval()
    before = [part.training for part in model.modules()]
    engine = make_engine(model)
    stream = engine.generate(make_prompts((4,)), 2, SamplingParams(4), seed=0, step=0)
    next(stream)
    assert not any(part.training for part in model.modules())
    assert not torch.is_inference_mode_enabled()
    stream.close()
    assert [part.training for part in model.modules()] == before


def live_caches():
    gc.collect()
    return sum(type(thing) is SlotCache for thing in gc.get_objects())


def test_closing_early_releases_the_cache():
    engine = make_engine(build("llama"))
    stream = engine.generate(
        make_prompts((4, 5)),
        2,
        SamplingParams(30, stop_token_ids=frozenset(range(40))),
        seed=0,
        step=0,
    )
    before = live_caches()
    next(stream)
    assert live_caches() == before + 2
    stream.close()
    assert live_caches() == before
    assert len(run(engine, make_prompts((4,)), 2, SamplingParams(3))) == 2


def test_the_policy_can_be_trained_between_steps_of_the_stream():
    """Samples arrive outside inference mode, and no weight has become an inference tensor."""
    model = build("llama")
    stream = make_engine(model).generate(make_prompts((4,)), 2, SamplingParams(4), seed=0, step=0)
    next(stream)
    weight = model.model.embed_tokens.weight
    (weight.sum() * 2).backward()
    assert float(weight.grad.mean()) == 2.0


def test_every_step_reads_the_policys_current_weights():
    model = build("llama")
    engine = make_engine(model)
    sampling = SamplingParams(12, temperature=0)
    before = run(engine, make_prompts((6,)), 1, sampling)[0, 0].token_ids
    other = build("llama", seed=1)
    model.load_state_dict(other.state_dict())
    after = run(engine, make_prompts((6,)), 1, sampling)[0, 0].token_ids
    assert before != after
    assert after == run(make_engine(other), make_prompts((6,)), 1, sampling)[0, 0].token_ids


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_supported_models_pass_the_check(architecture, dtype):
    model = build(architecture, dtype=dtype)
    layers = check_supported(Policy(model))
    assert [(s.kv_heads, s.key_dim, s.value_dim) for s in layers] == [(2, 8, 8)] * 3
    assert model.config._attn_implementation == NAME


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}


def test_attention_sinks_are_refused_by_name():
    register()
    config = GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1)
    config._attn_implementation = NAME
    with pytest.raises(ModelError, match=r"GptOss.*sinks"):
        check_supported(Policy(GptOssForCausalLM(config)))


def test_linear_attention_is_refused_by_name():
    register()
    config = Qwen3NextConfig(
        **SMALL,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    )
    config._attn_implementation = NAME
    with pytest.raises(ModelError, match="Qwen3NextForCausalLM has 4 layers, of which 1 use"):
        check_supported(Policy(Qwen3NextForCausalLM(config)))


def test_attention_that_is_altered_is_refused(monkeypatch):
    model = build("llama")
    policy = Policy(model)
    monkeypatch.setattr(
        "roost.engines.embedded.support.causal_attention", lambda q, k, v, params: q * 1.0
    )
    with pytest.raises(ModelError, match="LlamaForCausalLM computes other logits"):
        check_supported(policy)
    assert model.config._attn_implementation == NAME
