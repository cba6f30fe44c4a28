"""An engine's memory against vLLM startup logs, whose parts are printed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from roost.planner.book import Book
from roost.planner.cards import registry
from roost.planner.engine_memory import EngineMemory, engine_memory, weight_bytes
from roost.planner.models import find_shape
from roost.planner.request import Engine, Hardware, Layout, Request, Workload
from support.toy_plans import CACHE_BYTES, card, request

GIB = 2**30
LAYOUT = Layout("server", 1, "ddp", 1, 1, 1, 0.5, 0)


def term(memory: EngineMemory, name: str) -> float:
    return next(t.bytes for t in memory.terms if t.name == name) / GIB


def started(model: str, engine: Engine, *, tp: int = 1) -> EngineMemory:
    asked = Request(
        find_shape(model),
        Hardware(registry().card("H100"), gpus_per_node=8),
        Workload(1, 1, 0, 16000),
        engine=replace(engine, max_batched_tokens=8192, graph_inside=False),
    )
    return engine_memory(asked, Layout("server", 1, "ddp", tp, tp, 1, 0.9, 0), Book())


@pytest.mark.parametrize(
    ("model", "peak"),
    # Peaks that vLLM 0.11 printed on H100 with 1,024 sequences.
    [("gpt-oss-20b", 7.38), ("Llama-3.1-8B", 4.76), ("Qwen3-32B", 5.64), ("Qwen3-0.6B", 5.56)],
)
def test_a_sampler_that_sorts(model: str, peak: float) -> None:
    found = started(model, Engine(max_num_seqs=1024))
    assert term(found, "engine activations") == pytest.approx(peak, rel=0.015)


@pytest.mark.parametrize(
    ("model", "peak"),
    # Peaks that vLLM 0.19 printed; 0.18 GiB of each is not the sampler's.
    [("Llama-3.1-8B", 1.89), ("Qwen3-8B", 2.21), ("Phi-4", 1.52), ("gpt-oss-20b", 2.87)],
)
def test_a_sampler_that_does_not(model: str, peak: float) -> None:
    found = started(model, Engine(max_num_seqs=1024, native_sampler=False))
    assert term(found, "engine activations") + 0.18 == pytest.approx(peak, abs=0.05)


@pytest.mark.parametrize(
    ("model", "dtype", "tp", "gib"),
    [
        ("Llama-3.1-8B", "bfloat16", 1, 14.99),
        ("Qwen3-32B", "bfloat16", 2, 30.59),
        ("Llama-3.3-70B", "fp8", 2, 33.88),
        ("gpt-oss-20b", "mxfp4", 1, 13.47),
        # 2,880 over four cards is 720, which is padded to 768.
        ("gpt-oss-120b", "mxfp4", 4, 17.2217),
    ],
)
def test_weights_of_one_card(model: str, dtype: str, tp: int, gib: float) -> None:
    found = weight_bytes(find_shape(model).shape, dtype, tp) / tp / GIB
    assert found == pytest.approx(gib, rel=0.006)  # the rest is tables of rotary angles


def test_the_cache_is_what_is_left_of_the_share_in_whole_blocks() -> None:
    engine = Engine(max_num_seqs=1, max_batched_tokens=1, graph_inside=False)
    asked = request(Hardware(card(), gpus_per_node=2), Workload(1, 1, 0, 100), engine=engine)
    found = engine_memory(asked, LAYOUT, Book())
    others = sum(t.bytes for t in found.terms if t.name != "key-value cache")
    assert found.share == 5 * GIB
    assert found.cache == 5 * GIB - others
    assert found.cache_tokens == found.cache // (16 * CACHE_BYTES) * 16
    # 100 tokens take seven blocks of 16.
    assert found.resident == found.cache // (112 * CACHE_BYTES)


def test_weights_that_are_larger_than_the_share_leave_no_cache() -> None:
    small = Hardware(card(memory_visible_bytes=GIB), gpus_per_node=2)
    asked = request(small, Workload(1, 1, 0, 100), engine=Engine(graph_inside=False))
    book = Book()
    found = engine_memory(asked, replace(LAYOUT, utilization=0.1), book)
    assert found.cache < 0
    assert (found.cache_tokens, found.resident) == (0, 0)
    assert book.figures["rollout.kv_cache_bytes"].value == 0
    assert book.figures["rollout.kv_cache_low_bytes"].value == 0


def test_a_guide_s_convention_has_no_band() -> None:
    book = Book()
    engine_memory(replace(request(Hardware(card(), 2)), convention="listed"), LAYOUT, book)
    assert "rollout.kv_cache_low_bytes" not in book.figures
