"""Decoding in fixed shapes: the same tokens as in whatever shape, each shape recorded once.

What needs a GPU is a stand-in that writes down its calls; ``scripts/gpu-check decode`` runs the
real one.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from itertools import pairwise
from typing import Any

import pytest
import torch
from engine_support import close, make_engine, make_prompts, run
from hypothesis import given
from hypothesis import strategies as st

from roost.engines.embedded import decoders, fixed
from roost.engines.embedded.cache import LayerShape, SlotCache
from roost.engines.embedded.decoders import Decoding
from roost.engines.embedded.fixed import FixedDecoder, step_numbers, width_of
from roost.engines.embedded.kernels import Choice, SlotKernel, choose_kernel
from roost.engines.embedded.scheduler import RunningGroup, RunningSample
from roost.engines.protocol import SamplingParams
from roost.model.policy import Policy
from roost.samples import Prompt, Sample
from support.fake_gpu import DefinedKernel, Tape
from support.small_models import ARCHITECTURES, build, with_adapter

CPU = torch.device("cpu")
LENGTHS = (9, 1, 40, 3)
STOPPING = SamplingParams(70, stop_token_ids=frozenset(range(5, 12)))
"""Rows leave at different times, so that the width shrinks and slots move."""


def fixed_decoding(
    monkeypatch: pytest.MonkeyPatch, kernel: SlotKernel | None = None, tape: Tape | None = None
) -> Decoding:
    if tape is not None:
        monkeypatch.setattr(decoders, "CudaRecorder", lambda device: tape)
    return Decoding(True, Choice(kernel, "asked for"), recorded=tape is not None)


def tokens(samples: dict[tuple[int, int], Sample]) -> dict[tuple[int, int], list[int]]:
    return {key: sample.token_ids for key, sample in samples.items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_tokens_are_those_of_any_shape(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts = build(architecture), make_prompts(LENGTHS)
    direct = run(make_engine(model), prompts, 4, STOPPING)
    engine = make_engine(model, decoding=fixed_decoding(monkeypatch))
    found = run(engine, prompts, 4, STOPPING)
    assert tokens(found) == tokens(direct)
    assert len({len(ids) for ids in tokens(found).values()}) > 5
    for key, sample in found.items():
        assert close(sample.logprobs, torch.tensor(direct[key].logprobs))


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen3_moe", "mistral", "gemma2"])
def test_a_kernel_gives_the_tokens_of_the_definition(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = DefinedKernel()
    model, prompts = build(architecture), make_prompts(LENGTHS)
    engine = make_engine(model, decoding=fixed_decoding(monkeypatch, kernel))
    assert tokens(run(engine, prompts, 4, STOPPING)) == tokens(
        run(make_engine(model), prompts, 4, STOPPING)
    )
    # Windows that are shorter than what a slot holds, and soft caps, are none of a kernel's.
    assert (kernel.calls > 0) is (architecture not in ("mistral", "gemma2"))


def test_with_an_adapter_and_a_cache_too_small_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = with_adapter(build("llama")), make_prompts(LENGTHS)
    engine = make_engine(
        model, max_sequences=5, decoding=fixed_decoding(monkeypatch, DefinedKernel())
    )
    assert tokens(run(engine, prompts, 4, STOPPING)) == tokens(
        run(make_engine(model), prompts, 4, STOPPING)
    )


def test_a_shape_is_rehearsed_once_recorded_once_and_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tape, prompts = Tape(), make_prompts(LENGTHS)
    made: list[FixedDecoder] = []
    honest = FixedDecoder.logits

    def counted(self: FixedDecoder, running: list[RunningSample]) -> torch.Tensor:
        made.append(self)
        return honest(self, running)

    monkeypatch.setattr(FixedDecoder, "logits", counted)
    model = build("llama")
    decoding = fixed_decoding(monkeypatch, DefinedKernel(), tape)
    found = run(make_engine(model, decoding=decoding), prompts, 4, STOPPING)

    assert tokens(found) == tokens(run(make_engine(model), prompts, 4, STOPPING))
    (decoder,) = set(made)
    # Widths 16, 8, 4, 2 and 1 at most.
    assert 3 <= len(tape.rehearsed) <= 5
    assert decoder.recordings == len(tape.recorded) <= len(tape.rehearsed)
    steps = len(made)
    assert tape.replays == steps - len(tape.rehearsed), "all but the first step of each shape"
    assert steps > 15
    assert decoder.not_recorded == ""


def test_a_step_that_waits_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tape, prompts = Tape(refuse=True), make_prompts(LENGTHS)
    made: list[FixedDecoder] = []

    class Noted(FixedDecoder):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(decoders, "FixedDecoder", Noted)
    model = build("llama")
    engine = make_engine(model, decoding=fixed_decoding(monkeypatch, None, tape))
    assert tokens(run(engine, prompts, 4, STOPPING)) == tokens(
        run(make_engine(model), prompts, 4, STOPPING)
    )
    assert made[0].not_recorded == "called a synchronizing CUDA operation"
    assert tape.recorded == []


def test_the_cache_is_given_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded steps hold addresses of it; no cycle may keep it for Python's next collection."""
    caches: list[weakref.ref[SlotCache]] = []
    honest = Decoding.decoder

    def noted(self: Decoding, policy: Policy, prompts: SlotCache, own: SlotCache) -> Any:
        caches.extend([weakref.ref(prompts), weakref.ref(own)])
        return honest(self, policy, prompts, own)

    monkeypatch.setattr(Decoding, "decoder", noted)
    monkeypatch.setattr(decoders, "CudaRecorder", lambda device: Tape())
    decoding = Decoding(True, Choice(None, "asked for"), recorded=True)
    engine = make_engine(build("llama"), decoding=decoding)
    gc.collect()
    gc.disable()
    try:
        list(engine.generate(make_prompts((4, 5)), 2, SamplingParams(9), seed=0, step=0))
        assert [cache() for cache in caches] == [None, None]
    finally:
        gc.enable()


def test_an_error_of_the_model_is_not_taken_for_waiting() -> None:
    """Only what the GPU's own message says is a reason not to record."""
    from roost.engines.embedded.graphs import NotRecordable, _waiting_forbidden

    def broken() -> None:
        with _waiting_forbidden():
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.MonkeyPatch.context() as patch:
        modes: list[object] = []
        patch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
        patch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
        with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
            broken()
        assert not isinstance(caught.value, NotRecordable)
        assert modes == ["error", 0]
        with pytest.raises(NotRecordable, match="synchronizing"), _waiting_forbidden():
            raise RuntimeError("called a synchronizing CUDA operation\nand more")
        assert modes == ["error", 0] * 2


def rows_of(groups: list[int], prompt_lengths: list[int]) -> list[RunningSample]:
    """Running samples whose groups stand in these slots; each has as many tokens as its number."""
    owners = [
        RunningGroup(Prompt(slot, (3,) * length, ""), slot, deque())
        for slot, length in enumerate(prompt_lengths)
    ]
    return [
        RunningSample(owners[slot], number, iter(()), token_ids=list(range(100, 101 + number)))
        for number, slot in enumerate(groups)
    ]


def test_the_numbers_of_a_step() -> None:
    """Rows of groups 1, 0, 1 in a width of 4, of three slots; the padding is of group 0."""
    numbers = step_numbers(rows_of([1, 0, 1], [5, 7]), 4, 3)
    ids, lengths, slots, order, places = (numbers[4 * i : 4 * i + 4] for i in range(5))
    assert ids == [100, 101, 102, 0]
    assert lengths == [0, 1, 2, 0]
    assert slots == [1, 0, 1, 0]
    assert order == [1, 3, 0, 2]
    assert places == [2, 0, 3, 1]
    assert numbers[20:24] == [0, 2, 4, 4]
    assert numbers[24:] == [5, 7, 1]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(0, 12))
def test_every_row_has_a_place_among_its_groups(groups: list[int], padding: int) -> None:
    width = len(groups) + padding
    numbers = step_numbers(rows_of(groups, [2, 3, 4, 5, 6, 7]), width, 6)
    slots, order, places = (numbers[width * i : width * (i + 1)] for i in (2, 3, 4))
    ends = numbers[5 * width : 5 * width + 7]
    assert [order[place] for place in places] == list(range(width))
    for slot, (start, end) in enumerate(pairwise(ends)):
        assert {slots[row] for row in order[start:end]} <= {slot}
    assert ends[-1] == width


@given(st.integers(1, 300), st.integers(0, 300))
def test_a_width_has_room_and_no_more_than_twice_that(rows: int, more: int) -> None:
    width = width_of(rows, rows + more)
    assert rows <= width <= min(rows + more, 2 * rows)


def test_keys_by_definition_grow_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    honest = fixed.FixedLayout

    def noted(*arguments: object) -> fixed.FixedLayout:
        seen.add(arguments[3])
        return honest(*arguments)

    monkeypatch.setattr(fixed, "FixedLayout", noted)
    engine = make_engine(build("llama"), decoding=fixed_decoding(monkeypatch))
    run(engine, make_prompts((4,)), 2, SamplingParams(300))
    # 299 tokens are fed back; the slot holds 320.
    assert seen == {64, 128, 256, 320}


SHAPES = [LayerShape(2, 8, 8), LayerShape(4, 16, 16)]


def test_a_kernel_is_chosen_that_is_right() -> None:
    right, wrong = DefinedKernel(), DefinedKernel(wrong=0.1)
    found = choose_kernel(SHAPES, torch.bfloat16, CPU, (wrong, right))
    assert found.kernel is right
    assert right.calls == 2, "one try for each shape"


@pytest.mark.parametrize(
    ("candidates", "dtype", "layers", "reason"),
    [
        (
            (DefinedKernel(wrong=0.1),),
            torch.bfloat16,
            SHAPES,
            "is 0.1 off the definition for heads",
        ),
        ((DefinedKernel(wrong=torch.nan),), torch.float16, SHAPES, "is inf off the definition"),
        ((DefinedKernel(),), torch.float32, SHAPES, "no kernel computes in float32"),
        ((DefinedKernel(),), torch.bfloat16, [LayerShape(2, 8, 16)], "differ in width"),
    ],
)
def test_a_kernel_that_is_not_right_is_passed_over(
    candidates: tuple[SlotKernel, ...],
    dtype: torch.dtype,
    layers: list[LayerShape],
    reason: str,
) -> None:
    found = choose_kernel(layers, dtype, CPU, candidates)
    assert found.kernel is None
    assert found.reason.startswith("by definition: ")
    assert reason in found.reason


def test_flash_attention_is_called_by_its_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema that torch has for it takes the call; where it is not built in, that is said."""
    found = choose_kernel(SHAPES, torch.bfloat16, CPU)
    assert found.kernel is None
    assert "flash attention refuses heads of" in found.reason
    schema = torch.ops.aten._flash_attention_forward.default._schema
    names = [argument.name for argument in schema.arguments]
    assert names[:10] == [
        "query", "key", "value", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "dropout_p",
        "is_causal", "return_debug_mask",
    ]  # fmt: skip
    assert {"scale", "seqused_k"} < set(names)
