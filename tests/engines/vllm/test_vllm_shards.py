"""A server with tensor parallelism: vLLM divides the model among processes of its own.

The model has biases, a head that is not tied, and one head of keys and values for two shards, so
that all ways of dividing a layer are met.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from vllm_support import CACHE_BYTES, TOKENIZER, move, needs_vllm, prompts

from roost.engines.protocol import SamplingParams
from roost.engines.vllm.client import RemotePort
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.port import VllmSettings
from roost.engines.vllm.server.addresses import read_addresses
from roost.errors import EngineError
from roost.model.policy import Policy
from roost.sync.trainer_side import score
from support.small_models import build

pytestmark = [needs_vllm, pytest.mark.slow]

SHAPE: dict[str, Any] = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 128,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
}
K = "model.layers.1.self_attn.k_proj.weight"
UP = "model.layers.2.mlp.up_proj.weight"
DOWN = "model.layers.2.mlp.down_proj.weight"
HEAD = "lm_head.weight"
Q_BIAS = "model.layers.0.self_attn.q_proj.bias"
Served = tuple["subprocess.Popen[str]", str]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """``roost serve`` with two shards, and the file of its address."""
    folder = tmp_path_factory.mktemp("served")
    build("qwen2", **SHAPE).save_pretrained(folder / "model")
    TOKENIZER.save_pretrained(folder / "model")
    command = [
        *(sys.executable, "-m", "roost", "serve", str(folder / "model"), "--device", "cpu"),
        *("--tensor-parallel-size", "2", "--dtype", "float32", "--max-tokens", "128"),
        *("--cache-bytes", str(CACHE_BYTES), "--address-file", str(folder / "address.json")),
    ]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        # Printed once it answers; empty where it ended instead.
        assert process.stdout.readline(), (folder / "log.txt").read_text()
        yield process, str(folder / "address.json")
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture
def engine(server: Served) -> Iterator[VllmEngine]:
    policy = Policy(build("qwen2", **SHAPE))
    port = RemotePort(read_addresses(server[1])[0])
    probe = [token for prompt in prompts(3) for token in prompt.token_ids]
    engine = VllmEngine(policy, TOKENIZER, port, probe=probe, cache_bytes=CACHE_BYTES)
    yield engine
    engine.close()


def samples(engine: VllmEngine) -> list[Any]:
    return list(engine.generate(prompts(3), 2, SamplingParams(6), seed=0, step=0))


def test_each_shard_is_proven_and_samples_are_the_trainers(engine: VllmEngine) -> None:
    engine.sync()
    move(engine.policy, 0.05)
    metrics = engine.sync()
    # In each shard 7 of a layer (the bias of q, k and v is one), and 3 besides.
    assert metrics["sync/tensors_compared"] == 2 * (3 * 7 + 3)
    owners = {prompt.id: prompt for prompt in prompts(3)}
    found = samples(engine)
    assert len(found) == 6
    for sample in found:
        ids = [*owners[sample.prompt_id].token_ids, *sample.token_ids]
        expected = score(engine.policy, ids)[-len(sample.token_ids) :]
        assert sample.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "place", "says"),
    [
        (DOWN, (0, -1), ["mlp.down_proj.weight/1 is not what was sent"]),
        (DOWN, (0, 0), ["mlp.down_proj.weight/0 is not what was sent"]),
        (UP, (-1, 0), ["mlp.gate_up_proj.weight/1 is not what was sent"]),
        (HEAD, (-1, 0), ["lm_head.weight/1 is not what was sent"]),
        (Q_BIAS, (0,), ["layers.0.self_attn.qkv_proj.bias/0 is not what was sent"]),
        # Both shards hold the one head of keys.
        (K, (0, 0), ["1.self_attn.qkv_proj.weight/0 is not", "1.self_attn.qkv_proj.weight/1 is"]),
    ],
)
def test_a_bit_flipped_on_the_way_is_found_in_the_shards_that_hold_it(
    name: str,
    place: tuple[int, ...],
    says: list[str],
    engine: VllmEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine.sync()
    move(engine.policy)
    honest = engine._port.send

    def send(tensors: list[tuple[str, torch.Tensor]]) -> Any:
        spoilt = dict(tensors)
        if name in spoilt:
            spoilt[name] = spoilt[name].clone()
            spoilt[name].view(torch.int32)[place] ^= 1
        return honest(list(spoilt.items()))

    monkeypatch.setattr(engine._port, "send", send)
    with pytest.raises(EngineError) as caught:
        engine.sync()
    assert str(caught.value).count("is not what was sent") == len(says)
    assert all(part in str(caught.value) for part in says)
    with pytest.raises(EngineError, match="cannot go from"):
        samples(engine)


def test_a_dropped_tensor_was_written_in_no_shard(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.sync()
    move(engine.policy)
    honest = engine._port.send

    def send(tensors: list[tuple[str, torch.Tensor]]) -> Any:
        return honest([(name, tensor) for name, tensor in tensors if name != DOWN])

    monkeypatch.setattr(engine._port, "send", send)
    with pytest.raises(EngineError, match=f"{DOWN} was not sent") as caught:
        engine.sync()
    for shard in (0, 1):
        assert f"{DOWN}/{shard} was not written" in str(caught.value)


def test_a_server_leaves_no_names_in_shared_memory(engine: VllmEngine) -> None:
    """They are gone while it runs, so that nothing stays behind after a kill either."""
    assert not list(Path("/dev/shm").glob("vllm_dist_*"))
    engine.sync()
    assert samples(engine)


def test_what_its_processes_speak_through_lies_in_its_folder(server: Served) -> None:
    """And goes with it: vLLM itself removes no socket."""
    port = RemotePort(read_addresses(server[1])[0])
    folder = port._folder
    port.close()
    assert folder is not None
    assert any(path.is_socket() for path in folder.iterdir())


def test_a_shard_that_dies_ends_the_server(server: Served) -> None:
    """The last test of it. A trainer then finds it gone, as any server that died."""
    process, file = server
    port = RemotePort(read_addresses(file)[0])
    folder = port._folder
    port.close()
    children = psutil.Process(process.pid).children(recursive=True)
    workers = [child for child in children if "resource_tracker" not in str(child.cmdline())]
    assert len(workers) >= 2
    workers[-1].kill()
    assert process.wait(60) != 0
    assert folder is not None
    assert not folder.exists()


def test_shards_on_gpus_are_launched_by_vllm_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract of the path that no CPU takes."""
    from roost.engines.vllm import adapter

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 * 2**30, 4 * 2**30))

    def arguments(**changes: Any) -> dict[str, Any]:
        settings = VllmSettings(
            model="model",
            dtype=torch.bfloat16,
            device="cuda",
            cache_bytes=2**30,
            max_tokens=64,
            max_sequences=8,
            seed=0,
            **changes,
        )
        return adapter._arguments(settings)

    colocated = arguments(tensor_parallel=2, launched=True)
    assert colocated["distributed_executor_backend"] == "external_launcher"
    assert colocated["tensor_parallel_size"] == 2
    assert "worker_extension_cls" not in colocated
    server = arguments(tensor_parallel=2)
    assert server["distributed_executor_backend"] == "mp"
    assert server["worker_extension_cls"].endswith("worker_side.WorkerExtension")
    assert arguments()["distributed_executor_backend"] is None
