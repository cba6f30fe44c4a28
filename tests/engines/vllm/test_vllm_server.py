"""The real vLLM in a process of its own: runs, kills, and each injected fault."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_support import (
    CACHE_BYTES,
    RANK,
    SOURCE,
    TOKENIZER,
    make_policy,
    move,
    needs_vllm,
    prompts,
)

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.client import RemotePort
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.faults import (
    SpoilingPort,
    dropped,
    flip_a_bit,
    flipped,
    replaced,
    swapped,
    travelling,
    withheld,
    zeroed,
)
from roost.engines.vllm.fleet import ServerEngine
from roost.engines.vllm.member import Member
from roost.engines.vllm.places import LaunchedPlace
from roost.engines.vllm.port import Request, VllmSettings
from roost.errors import SyncError
from roost.run.metrics import read_metrics
from roost.sync.trainer_side import base_tensors, score
from support.tiny_runs import train_tiny

pytestmark = [needs_vllm, pytest.mark.slow]

DOWN = "model.layers.2.mlp.down_proj.weight"
K = "model.layers.1.self_attn.k_proj.weight"
V = "model.layers.1.self_attn.v_proj.weight"


def settings(*, lora: bool = False) -> VllmSettings:
    return VllmSettings(
        model=SOURCE.location,
        dtype=torch.float32,
        device="cpu",
        cache_bytes=CACHE_BYTES,
        max_tokens=128,
        max_sequences=8,
        seed=0,
        lora_rank=RANK if lora else None,
    )


@pytest.fixture(scope="module", params=["full", "lora"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[LaunchedPlace, bool]]:
    """One server for the tests of a kind; a test that kills it has it started again."""
    lora = request.param == "lora"
    place = LaunchedPlace(settings(lora=lora))
    yield place, lora
    place.close()


class Served:
    """A policy and an engine over the place's server, which is left running."""

    def __init__(self, place: LaunchedPlace, *, lora: bool) -> None:
        self.policy = make_policy(lora=lora)
        self.member = Member(place, self._make_engine)
        self.engine = ServerEngine(self.policy, TOKENIZER, [self.member], patience_s=120)

    def _make_engine(self, port: RemotePort) -> VllmEngine:
        probe = [token for prompt in prompts(3) for token in prompt.token_ids]
        self.spoiling, through = SpoilingPort.around(port)
        return VllmEngine(self.policy, None, through, probe=probe, cache_bytes=CACHE_BYTES)

    def samples(self, tokens: int = 6) -> list[Any]:
        stream = self.engine.generate(prompts(2), 2, SamplingParams(tokens), seed=0, step=0)
        return list(stream)


@pytest.fixture
def served(place: tuple[LaunchedPlace, bool]) -> Iterator[Served]:
    made = Served(place[0], lora=place[1])
    yield made
    made.member._leave()


def test_what_it_says_of_each_token_is_what_the_trainer_computes(served: Served) -> None:
    served.engine.sync()
    move(served.policy, 0.05)
    served.engine.sync()
    owners = {prompt.id: prompt for prompt in prompts(2)}
    for sample in served.samples():
        ids = [*owners[sample.prompt_id].token_ids, *sample.token_ids]
        expected = score(served.policy, ids)[-len(sample.token_ids) :]
        assert sample.logprobs == pytest.approx(expected, abs=1e-4)
        assert set(sample.policy_versions) == {served.policy.version}


LAYER, OTHER = (f"base_model.model.{name.removesuffix('.weight')}.lora" for name in (K, V))
FULL = {
    "drop": (dropped([DOWN]), "down_proj.weight was not written"),
    "zero": (zeroed(DOWN), "down_proj.weight is not what was sent"),
    "flip": (flipped(DOWN), "down_proj.weight is not what was sent"),
    "swap": (swapped(K, V), "qkv_proj.weight is not what was sent"),
}
LORA = {
    "drop": dropped([f"{LAYER}_A.weight", f"{LAYER}_B.weight"]),
    "zero": zeroed(f"{LAYER}_B.weight"),
    "flip": flipped(f"{LAYER}_B.weight"),
    "swap": swapped(f"{LAYER}_B.weight", f"{OTHER}_B.weight"),
}


@pytest.mark.parametrize("kind", FULL)
def test_a_fault_on_the_way_is_caught_by_name(kind: str, served: Served) -> None:
    served.engine.sync()
    move(served.policy, 0.1)
    served.spoiling.spoil, says = FULL[kind]
    if served.policy.is_adapter:
        served.spoiling.spoil, says = LORA[kind], r"qkv_proj\.1\.[AB] is not what was sent"
    with pytest.raises(SyncError, match=says):
        served.engine.sync()
    with pytest.raises(SyncError, match="the policy is at version"):
        served.samples()
    served.spoiling.spoil = None
    served.engine.sync()
    assert served.samples()


def test_a_skipped_sync_is_caught(served: Served) -> None:
    served.engine.sync()
    move(served.policy)
    with pytest.raises(SyncError, match="the policy is at version"):
        served.samples()


def test_a_sync_that_wrote_nothing_is_caught(served: Served) -> None:
    """The version rises and the weights do not: also what a stale adapter is."""
    served.engine.sync()
    before = {name: t.clone() for name, t in travelling(served.policy).items()}
    served.spoiling.spoil = replaced(before) if served.policy.is_adapter else withheld
    move(served.policy, 0.1)
    with pytest.raises(SyncError, match="is not what was sent"):
        served.engine.sync()


def test_a_base_weight_changed_is_caught(served: Served) -> None:
    if not served.policy.is_adapter:
        pytest.skip("full training sends every weight: there is no base to change")
    served.engine.sync()
    flip_a_bit(base_tensors(served.policy)[DOWN])
    move(served.policy)
    with pytest.raises(SyncError, match="layers.2.mlp.down_proj.weight is not what was sent"):
        served.engine.sync()


def test_a_request_that_is_too_long_costs_its_own_sample(served: Served) -> None:
    served.engine.sync()
    port = served.member.port
    long, short = Request([5] * 200, 1), Request(prompts(1)[0].token_ids, 1)
    ids = port.submit([long, short], SamplingParams(4))
    assert list(port.refused) == ids[:1]
    found: list[Any] = []
    while not found:
        found = port.step()
    assert [one.request_id for one in found] == ids[1:]


def test_killed_while_sampling_it_is_started_again_and_nothing_is_lost(
    served: Served, place: tuple[LaunchedPlace, bool]
) -> None:
    """``kill -9`` between two samples: started again, synced, proven, and asked again."""
    served.engine.sync()
    move(served.policy, 0.05)
    served.engine.sync()
    undisturbed = {(s.prompt_id, s.index): s.token_ids for s in served.samples(40)}
    stream = served.engine.generate(prompts(2), 2, SamplingParams(40), seed=0, step=0)
    killer = threading.Thread(target=kill_soon, args=(place[0].pid,))
    killer.start()
    samples = list(stream)
    killer.join()
    assert {(s.prompt_id, s.index): s.token_ids for s in samples} == undisturbed
    assert {v for s in samples for v in s.policy_versions} == {served.policy.version}
    move(served.policy)
    assert served.engine.sync()["servers/lost"] == 1


def kill_soon(pid: int | None) -> None:
    assert pid is not None
    time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_recipe_trains_on_a_server_with_one_field_changed(method: str, tmp_path: Path) -> None:
    rates = {"full": 1e-3, "lora": 1e-2}
    sections = {
        "train": {"steps": 2, "method": method, "learning_rate": rates[method]},
        "rollout": {"engine": "vllm", "mode": "server", "launch": True},
    }
    run = train_tiny(tmp_path / "run", Path.cwd(), sections)
    rows = read_metrics(run.folder.metrics)
    assert [row["policy_version"] for row in rows] == [1, 2]
    assert all(row["sampling/logp_difference_max"] < 1e-4 for row in rows)
