"""``roost serve``: vLLM in processes of its own, for ``rollout.mode = "server"``."""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roost.errors import ConfigError

if TYPE_CHECKING:
    from roost.engines.vllm.port import VllmSettings
    from roost.engines.vllm.server.addresses import Address


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model with vLLM to a trainer",
        description="Start vLLM servers that `roost train` samples from (rollout.mode = 'server').",
    )
    parser.add_argument("model", metavar="MODEL", help="a folder, a hub id, or `tiny`")
    parser.add_argument("--replicas", metavar="M", type=int, default=1, help="servers (default 1)")
    parser.add_argument(
        "--tensor-parallel-size",
        metavar="N",
        type=int,
        default=1,
        help="devices of each server (default 1)",
    )
    parser.add_argument("--revision", help="branch, tag or commit of a hub id")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--max-tokens", metavar="N", type=int, default=4096, help="of prompt and completion"
    )
    parser.add_argument(
        "--max-sequences", metavar="N", type=int, default=64, help="decoded at once"
    )
    parser.add_argument(
        "--cache-bytes", metavar="N", type=int, default=2**30, help="key-value cache of a server"
    )
    parser.add_argument("--lora-rank", metavar="N", type=int, help="of train.method = 'lora'")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument(
        "--advertise",
        metavar="HOST",
        help="what trainers connect to (default --host; this machine's name for 0.0.0.0 and ::)",
    )
    parser.add_argument("--port", type=int, default=0, help="by default any that is free")
    parser.add_argument("--token-file", metavar="FILE", help="holds the secret that callers send")
    parser.add_argument(
        "--address-file", metavar="FILE", type=Path, help="write addresses here once ready"
    )
    for hidden in ("--own-token", "--until-stdin-ends"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--settings", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    # Here, not above: `roost --help` must not wait for torch.
    from roost.engines.vllm import check_version, installed_version
    from roost.engines.vllm.server.addresses import read_token, write_addresses
    from roost.engines.vllm.server.listening import advertised, check_listening, check_token
    from roost.engines.vllm.server.main import serve

    _check(args)
    token = read_token(args.token_file)
    if args.own_token and token is None:
        token = secrets.token_urlsafe(32)
    check_token(args.host, token)
    check_listening(args.host, args.port)
    args.advertise = advertised(args.host, args.advertise)
    check_version(installed_version())

    def ready(addresses: list[Address]) -> None:
        if args.address_file is not None:
            write_addresses(args.address_file, addresses)
        # Without the token: what is printed ends in logs.
        print(json.dumps({"servers": [address.url for address in addresses]}), flush=True)

    settings = _settings(args)
    if args.replicas == 1:
        serve(
            settings,
            host=args.host,
            advertise=args.advertise,
            port=args.port,
            token=token,
            on_ready=lambda address: ready([address]),
            until_stdin_ends=args.until_stdin_ends,
        )
    else:
        _serve_several(args, settings, ready)
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("replicas", "tensor_parallel_size", "max_tokens", "max_sequences", "cache_bytes"):
        value = getattr(args, name)
        if value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: should be 1 or more.")
    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port {args.port}: should be from 0 (any that is free) to 65535.")
    if args.replicas > 1 and args.port:
        raise ConfigError(
            f"--port {args.port}: is one port, and --replicas {args.replicas} need one each; leave "
            "it out, and give --address-file FILE to the servers and rollout.servers = ['FILE']."
        )


def _settings(args: argparse.Namespace) -> VllmSettings:
    import torch

    from roost.config import ModelConfig
    from roost.engines.vllm.port import LORA_RANKS, VllmSettings, slot_rank
    from roost.engines.vllm.sharding import check_shards
    from roost.model.loading import choose_device, choose_dtype, load_model_config
    from roost.model.source import find_model
    from roost.planner.model_config import shape_from_config

    if args.settings is not None:
        given = json.loads(args.settings)
        return VllmSettings(**given | {"dtype": getattr(torch, given["dtype"])})
    if args.lora_rank is not None and (args.lora_rank < 1 or slot_rank(args.lora_rank) is None):
        raise ConfigError(f"--lora-rank {args.lora_rank}: should be from 1 to {LORA_RANKS[-1]}.")
    model = ModelConfig(
        path=args.model, revision=args.revision, dtype=args.dtype, device=args.device
    )
    source = find_model(model)
    shape = shape_from_config(load_model_config(source).to_dict())
    check_shards(args.tensor_parallel_size, shape, "--tensor-parallel-size")
    device = choose_device(model).type
    if device == "cuda":
        _check_cards(args, torch.cuda.device_count())
    return VllmSettings(
        model=source.location,
        dtype=choose_dtype(model, shape.parameters),
        device=device,
        cache_bytes=args.cache_bytes,
        max_tokens=args.max_tokens,
        max_sequences=args.max_sequences,
        seed=0,
        lora_rank=args.lora_rank,
        revision=source.revision,
        tokenizer=source.location,
        tensor_parallel=args.tensor_parallel_size,
    )


def _check_cards(args: argparse.Namespace, cards: int) -> None:
    needed = args.replicas * args.tensor_parallel_size
    if needed > cards:
        raise ConfigError(
            f"--replicas {args.replicas} with --tensor-parallel-size {args.tensor_parallel_size}: "
            f"need {needed} GPUs and this machine has {cards}. Lower one of them."
        )


def _serve_several(args: argparse.Namespace, settings: VllmSettings, ready: Any) -> None:
    """A process for each replica."""
    from roost.engines.vllm.server.process import ServerProcess
    from roost.engines.vllm.server.replicas import Replicas

    options = ["--host", args.host, "--advertise", args.advertise]
    if args.token_file is not None:
        options += ["--token-file", args.token_file]
    size = settings.tensor_parallel
    starts = [
        partial(
            ServerProcess,
            settings,
            options,
            range(first, first + size) if settings.device == "cuda" else None,
        )
        for first in range(0, args.replicas * size, size)
    ]
    # Asked to end by a signal, it ends its servers and removes what it has written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    replicas = Replicas(starts, ready, lambda line: print(line, file=sys.stderr, flush=True))
    try:
        replicas.run()
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr)
    finally:
        replicas.close()
