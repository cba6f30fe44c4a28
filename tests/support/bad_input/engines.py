"""What a rollout engine cannot do, or is not there to do."""

from __future__ import annotations

import json
from collections.abc import Callable

from roost.engines.vllm.server.addresses import Address, write_addresses
from roost.model.policy import Policy
from support.bad_input.case import Arguments, case
from support.desk import Desk
from support.listeners import free_port, web_page
from support.served_port import ServedPort, SlowPort
from support.small_models import build

SUPPORTED = "0.32.0"


def vllm(version: str | None, *overrides: str) -> Arguments:
    """A run with vLLM, of which this version (or none) is installed."""

    def arguments(desk: Desk) -> list[str]:
        desk.patch.setattr("roost.run.engines.installed_version", lambda: version)
        return desk.set("rollout.engine=vllm", *overrides)

    return arguments


def servers(make: Callable[[Desk], object]) -> Arguments:
    """A run on what a function names as ``rollout.servers``."""

    def arguments(desk: Desk) -> list[str]:
        named = json.dumps(make(desk))
        return vllm(SUPPORTED, "rollout.mode=server", f"rollout.servers={named}")(desk)

    return arguments


def served(desk: Desk, token: str | None = None) -> Address:
    """A server that is there."""
    server = ServedPort(SlowPort(Policy(build("llama"))), token)
    desk.after(server.close)
    return server.address


def address_file(desk: Desk, *addresses: Address, name: str = "servers.json") -> list[str]:
    """What ``roost serve`` writes."""
    write_addresses(desk.root / name, addresses)
    return [name]


def page(desk: Desk) -> list[str]:
    """A web server that knows nothing of Roost."""
    url, close = web_page()
    desk.after(close)
    return [url]


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
    case(
        "server-file-misspelt",
        servers(lambda desk: address_file(desk, Address("http://a:1")) and ["server.json"]),
        "server.json' cannot be read (No such file or directory). Did you mean 'servers.json'?",
        "should be http://HOST:PORT, or the file that `roost serve MODEL --address-file FILE`",
    ),
    case(
        "server-without-http",
        servers(lambda desk: ["localhost:8000"]),
        "Did you mean 'http://localhost:8000'?",
    ),
    *(
        case(f"server-url-{name}", servers(lambda _, url=url: [url]), f"rollout.servers: '{url}'")
        for name, url in {
            "https": "https://a:1",
            "port": "http://a:70000",
            "no-port": "http://a",
            "path": "http://a:1/v1",
            "bracket": "http://[::1:5",
        }.items()
    ),
    case(
        "server-file-of-something-else",
        servers(lambda desk: [desk.write("other.json", '{"servers": [{"url": 5}]}')]),
        "other.json' is no file that `roost serve --address-file` wrote",
    ),
    case(
        "server-file-without-servers",
        servers(lambda desk: address_file(desk)),
        "servers.json' is no file that `roost serve --address-file` wrote",
    ),
    case(
        "server-that-is-dead",
        servers(lambda desk: address_file(desk, Address(f"http://127.0.0.1:{free_port()}"))),
        "rollout.servers: 'servers.json': nothing listens at 127.0.0.1:",
        "(connection refused). Start it again with `roost serve MODEL --address-file servers.json`",
    ),
    case(
        "one-server-of-two-that-is-dead",
        servers(lambda desk: [served(desk).url, f"http://127.0.0.1:{free_port()}"]),
        "nothing listens at 127.0.0.1:",
        "a server has another port each time",
    ),
    case(
        "server-on-a-host-that-is-not-known",
        servers(lambda desk: ["http://nowhere.invalid:5"]),
        "rollout.servers: 'http://nowhere.invalid:5': the host of nowhere.invalid:5 is not known",
    ),
    case(
        "server-of-something-else",
        servers(page),
        "what answers at 127.0.0.1:",
        "is not a Roost server",
    ),
    case(
        "server-without-its-token",
        servers(lambda desk: [served(desk, "sesame").url]),
        "asks for a token. Set rollout.token_file to the file that it was started with",
    ),
    case(
        "server-with-the-token-of-another",
        servers(lambda desk: address_file(desk, Address(served(desk, "sesame").url, "sesam"))),
        "rollout.servers: 'servers.json': the server at 127.0.0.1:",
        "asks for another token. The file is of another server",
    ),
    case(
        "server-named-twice",
        servers(lambda desk: [(one := served(desk)).url, *address_file(desk, one)]),
        "rollout.servers: 'servers.json' names the server http://127.0.0.1:",
        "names too. Take one of them out",
    ),
    case("vllm-mode", vllm(SUPPORTED, "rollout.mode=sever"), "rollout.mode = 'sever'", "colocate"),
]
