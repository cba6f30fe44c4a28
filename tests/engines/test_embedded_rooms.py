"""What lives between two calls: the cache and its recorded steps, where they are to be kept."""

from __future__ import annotations

import pytest
import torch
from engine_support import make_engine, make_prompts, run

from roost.engines.embedded import decoders
from roost.engines.embedded.decoders import Decoding
from roost.engines.embedded.kernels import Choice
from roost.engines.embedded.rooms import Extent, Rooms
from roost.engines.embedded.support import check_supported
from roost.engines.protocol import SamplingParams
from roost.model.policy import Policy
from support.fake_gpu import DefinedKernel, Tape
from support.small_models import build

TOKEN = 3 * 2 * 2 * 8 * 4
"""Bytes of one token in the cache of the small model."""
DIRECT = Decoding(False, Choice(None, ""), recorded=False)


def make_rooms(*, keep: bool, cache_bytes: int = 2**30) -> Rooms:
    policy = Policy(build("llama"))
    layers = check_supported(policy)
    return Rooms(policy, layers, DIRECT, keep=keep, cache_bytes=cache_bytes)


def test_a_room_is_kept_as_long_as_it_is_large_enough() -> None:
    rooms = make_rooms(keep=True)
    with rooms.lent(Extent(2, 8, 64, 32)) as first:
        pass
    with rooms.lent(Extent(1, 8, 32, 32)) as second:
        assert second is first
    with rooms.lent(Extent(1, 4, 96, 32)) as longer:
        assert longer.extent == Extent(2, 8, 96, 32), "for the next call of either kind"
    with rooms.lent(Extent(2, 8, 64, 32)) as again:
        assert again is longer


def test_a_room_that_is_not_kept_is_made_anew() -> None:
    rooms = make_rooms(keep=False)
    with rooms.lent(Extent(2, 8, 64, 32)) as first:
        pass
    with rooms.lent(Extent(2, 8, 64, 32)) as second:
        assert second is not first


def test_two_calls_never_share_a_room() -> None:
    rooms = make_rooms(keep=True)
    with rooms.lent(Extent(2, 8, 64, 32)) as one, rooms.lent(Extent(2, 8, 64, 32)) as other:
        assert one is not other


def test_a_room_grows_no_larger_than_its_bound() -> None:
    """8 x 32 + 2 x 64 places, then 2 x 32 + 2 x 160: both in one would be 576."""
    rooms = make_rooms(keep=True, cache_bytes=500 * TOKEN)
    with rooms.lent(Extent(2, 8, 64, 32)) as first:
        assert first.nbytes == 384 * TOKEN
    with rooms.lent(Extent(2, 2, 160, 32)) as second:
        assert second.nbytes == 384 * TOKEN
        assert second.extent == Extent(2, 2, 160, 32)


def test_what_is_cleared_is_not_there_again() -> None:
    rooms = make_rooms(keep=True)
    with rooms.lent(Extent(2, 8, 64, 32)) as first:
        pass
    rooms.clear()
    with rooms.lent(Extent(2, 8, 64, 32)) as second:
        assert second is not first


def test_a_kept_cache_records_once_and_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call finds the first one's keys in the slots, and its steps recorded."""
    tape = Tape()
    monkeypatch.setattr(decoders, "CudaRecorder", lambda device: tape)
    decoding = Decoding(True, Choice(DefinedKernel(), ""), recorded=True)
    model = build("llama")
    engine = make_engine(model, decoding=decoding, keep_cache=True)
    sampling = SamplingParams(20, stop_token_ids=frozenset(range(5, 12)))
    for call, lengths in enumerate([(9, 20), (14, 3), (2, 2)]):
        prompts = make_prompts(lengths, seed=call)
        found = run(engine, prompts, 4, sampling, step=call)
        fresh = run(make_engine(model), prompts, 4, sampling, step=call)
        for key, sample in fresh.items():
            assert found[key].token_ids == sample.token_ids
            assert torch.allclose(
                torch.tensor(found[key].logprobs), torch.tensor(sample.logprobs), atol=1e-5
            )
    assert len(tape.rehearsed) <= 4, "widths 8, 4, 2 and 1, over three calls"
    engine.close()
