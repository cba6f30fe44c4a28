"""What a rollout engine cannot do, or is not there to do."""

from __future__ import annotations

from support.bad_input.case import Arguments, case
from support.desk import Desk

SUPPORTED = "0.32.0"


def vllm(version: str | None, *overrides: str) -> Arguments:
    """A run with vLLM, of which this version (or none) is installed."""

    def arguments(desk: Desk) -> list[str]:
        desk.patch.setattr("roost.run.engines.installed_version", lambda: version)
        return desk.set("rollout.engine=vllm", *overrides)

    return arguments


CASES = [
    case(
        "vllm-absent",
        vllm(None),
        "rollout.engine = 'vllm': vLLM is not installed",
        "scripts/install-vllm-cpu",
        "rollout.engine = 'embedded'",
    ),
    case("vllm-old", vllm("0.19.1"), "vLLM 0.19.1 is installed; supported is 0.32.x"),
    case(
        "vllm-truncated-sampling",
        vllm(SUPPORTED, "rollout.top_p=0.9", "rollout.top_k=20"),
        "rollout.top_p = 0.9: vLLM says",
        "rollout.top_k = 20",
        "leave it at 1.0",
    ),
    case(
        "vllm-sleep-on-a-cpu",
        vllm(SUPPORTED, "rollout.sleep=1", "model.device=cpu"),
        "rollout.sleep = 1: vLLM sleeps only on a GPU, and this run is on cpu",
    ),
    case(
        "vllm-sleep-2-with-an-adapter",
        vllm(SUPPORTED, "rollout.sleep=2", "train.method=lora"),
        "rollout.sleep = 2: drops the base weights, which LoRA never sends again; use 1",
    ),
    case(
        "sleep-of-the-embedded-engine",
        lambda desk: desk.set("rollout.sleep=1"),
        "rollout.sleep = 1: is of rollout.engine = 'vllm'",
    ),
    case(
        "vllm-wide-adapter",
        vllm(SUPPORTED, "train.method=lora", "lora.rank=600"),
        "lora.rank = 600: vLLM takes adapters of rank 512 at most",
    ),
    case("vllm-misspelt", vllm(SUPPORTED, "rollout.engine=vlm"), "Did you mean 'vllm'?"),
    case(
        "servers-of-the-embedded-engine",
        lambda desk: desk.set("rollout.launch=true"),
        "rollout.launch = True: is of rollout.engine = 'vllm' with rollout.mode = 'server'",
    ),
    case(
        "server-mode-of-the-embedded-engine",
        lambda desk: desk.set("rollout.mode=server"),
        "rollout.mode = 'server': is of rollout.engine = 'vllm'; set that too",
    ),
    case(
        "no-servers",
        vllm(SUPPORTED, "rollout.mode=server"),
        "neither is given; name running servers with rollout.servers",
    ),
    case(
        "servers-and-launch",
        vllm(
            SUPPORTED,
            "rollout.mode=server",
            "rollout.launch=true",
            'rollout.servers=["http://a:1"]',
        ),
        "both are given",
    ),
    case(
        "server-that-sleeps",
        vllm(SUPPORTED, "rollout.mode=server", "rollout.launch=true", "rollout.sleep=1"),
        "rollout.sleep = 1: a server does not sleep",
    ),
    case(
        "shards-without-vllm",
        lambda desk: desk.set("rollout.tensor_parallel=2"),
        "rollout.tensor_parallel = 2: is of rollout.engine = 'vllm'",
    ),
    case(
        "shards-of-servers-that-run",
        vllm(
            SUPPORTED,
            "rollout.mode=server",
            'rollout.servers=["http://a:1"]',
            "rollout.tensor_parallel=2",
        ),
        "rollout.tensor_parallel = 2: servers that run already have their own",
        "roost serve --tensor-parallel-size",
    ),
    case(
        "shards-that-divide-no-head",
        vllm(
            SUPPORTED,
            "rollout.mode=server",
            "rollout.launch=true",
            "rollout.tensor_parallel=3",
            "model.device=cpu",
        ),
        "rollout.tensor_parallel = 3: the model's attention heads (4) cannot be divided among 3",
    ),
    case("vllm-mode", vllm(SUPPORTED, "rollout.mode=sever"), "rollout.mode = 'sever'", "colocate"),
]
