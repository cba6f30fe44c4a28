"""``roost bench``: Roost beside its rivals and beside the floor, measured in turns."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from roost.bench.job import Workload, check_method, find_workload
from roost.bench.rivals import parse_rivals
from roost.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from roost.bench.comparison import Request
    from roost.run.display import Display

KINDS = ("step", "generate", "train", "growth")
DEFAULTS: dict[str, dict[str, Any]] = {
    "step": {
        "workload": "short",
        "method": "full",
        "rivals": "trl,trl-bf16",
        "prompts": 8,
        "generations": 8,
        "deadline": 1800.0,
    },
    "generate": {
        "sequences": 32,
        "tokens": 128,
        "rivals": "transformers,vllm",
        "deadline": 1800.0,
    },
    "train": {"workload": "short", "method": "full"},
    "growth": {"method": "full", "most_completions": 256, "longest": 1024},
}
"""By kind, the options that it takes beside those that all take."""
GENERATIONS = 8
"""Completions of a prompt where only generation is measured."""
DEFAULT_MODEL = "models/smollm2-135m-instruct"


def add_parser(subparsers: Any) -> None:
    """Declare the command."""
    parser = subparsers.add_parser(
        "bench",
        help="Roost beside TRL, transformers and vLLM, measured in turns",
        description="Measure. `step` (the default): whole GRPO steps beside TRL's. `generate`: "
        "generation alone. `train`: the training step beside its matrix products alone. `growth`: "
        "step time against the number and the length of completions.",
    )
    parser.add_argument("what", nargs="?", default="step", metavar="WHAT", help=" | ".join(KINDS))
    parser.add_argument("--model", default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    parser.add_argument("--steps", type=int, default=3, help="steps that count, after one warm-up")
    parser.add_argument("--threads", type=int, help="CPU threads of each; default: all cores")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    for option, kind, words in (
        ("--workload", str, "short | shared | long"),
        ("--method", str, "full | lora"),
        ("--rivals", str, "comma-separated, or none"),
        ("--prompts", int, "prompts of a step"),
        ("--generations", int, "completions of a prompt"),
        ("--sequences", int, f"completions in all, {GENERATIONS} a prompt"),
        ("--tokens", int, "tokens of each completion"),
        ("--deadline", float, "seconds for loading, and for a step of one contender"),
        ("--most-completions", int, "the largest step; smaller ones halve it down to 8"),
        ("--longest", int, "the longest completion; shorter ones halve it down to 64"),
    ):
        name = option.removeprefix("--").replace("-", "_")
        parser.add_argument(option, type=kind, help=f"{words}{_defaults(name)}")


def _defaults(name: str) -> str:
    """For which kinds an option is, and its default there."""
    homes = [f"{kind}: {options[name]}" for kind, options in DEFAULTS.items() if name in options]
    return f" (default for {'; '.join(homes)})"


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from roost.run.display import TerminalDisplay, WarningDisplay

    if args.what not in KINDS:
        raise ConfigError(f"no measurement {args.what!r}.{did_you_mean(args.what, KINDS)}")
    options = resolve(args)
    display: Display = WarningDisplay() if args.json else TerminalDisplay()
    result, lines = RUNNERS[args.what](options, display)
    print(json.dumps(result) if args.json else "\n".join(lines))
    return 0


def resolve(args: argparse.Namespace) -> dict[str, Any]:
    """All options of the kind asked for, defaults filled in.

    Raises:
        ConfigError: an option is of another kind, or no whole number from 1 on.
    """
    own = DEFAULTS[args.what]
    for name in {name for options in DEFAULTS.values() for name in options} - own.keys():
        if getattr(args, name) is not None:
            homes = [kind for kind, options in DEFAULTS.items() if name in options]
            raise ConfigError(
                f"{_option(name)} is an option of `roost bench {'` and `roost bench '.join(homes)}`"
                f", not of `roost bench {args.what}`. Take it out."
            )
    given = {name: getattr(args, name) for name in own}
    options = {name: own[name] if value is None else value for name, value in given.items()}
    options |= {
        "kind": args.what,
        "model": args.model,
        "steps": args.steps,
        "threads": args.threads if args.threads is not None else _cores(),
    }
    for name, value in options.items():
        if isinstance(value, (int, float)) and not 0 < value < float("inf"):
            raise ConfigError(f"{_option(name)} {value}: give a number above 0.")
    return options


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _compare(request: Request, display: Display) -> tuple[dict[str, Any], list[str]]:
    from roost.bench.comparison import compare, titles
    from roost.bench.presentation import lines_of

    result = compare(request, display.say)
    return result, lines_of(result, titles(request.kind))


def _step(options: Mapping[str, Any], display: Display) -> tuple[dict[str, Any], list[str]]:
    from roost.bench.comparison import Request

    shape = find_workload(options["workload"])
    if options["generations"] < 2:
        raise ConfigError("--generations 1: a group needs at least 2 completions to compare.")
    workload = Workload(
        shape.prompt_tokens, shape.completion_tokens, options["prompts"], options["generations"]
    )
    return _compare(
        Request(
            kind="step",
            model=options["model"],
            workload=workload,
            rivals=parse_rivals(options["rivals"], "step"),
            rounds=options["steps"],
            threads=options["threads"],
            deadline_s=options["deadline"],
            method=check_method(options["method"]),
        ),
        display,
    )


def _generate(options: Mapping[str, Any], display: Display) -> tuple[dict[str, Any], list[str]]:
    from roost.bench.comparison import Request

    if options["sequences"] % GENERATIONS:
        raise ConfigError(
            f"--sequences {options['sequences']}: give a multiple of {GENERATIONS}, the "
            "completions of a prompt."
        )
    prompts = options["sequences"] // GENERATIONS
    length = find_workload("short").prompt_tokens
    return _compare(
        Request(
            kind="generate",
            model=options["model"],
            workload=Workload(length, options["tokens"], prompts, GENERATIONS),
            rivals=parse_rivals(options["rivals"], "generate"),
            rounds=options["steps"],
            threads=options["threads"],
            deadline_s=options["deadline"],
        ),
        display,
    )


def _train(options: Mapping[str, Any], display: Display) -> tuple[dict[str, Any], list[str]]:
    from roost.bench import training

    workload, method = find_workload(options["workload"]), check_method(options["method"])
    display.say("roost, padded and floor: in turns, in one process")
    result = training.measure(
        options["model"], method, workload, options["steps"], options["threads"]
    )
    return result, training.lines_of(result)


def _growth(options: Mapping[str, Any], display: Display) -> tuple[dict[str, Any], list[str]]:
    from roost.bench import growth

    method = check_method(options["method"])
    result = growth.measure(
        options["model"],
        method,
        most_completions=options["most_completions"],
        longest=options["longest"],
        rounds=options["steps"],
        threads=options["threads"],
        say=display.say,
    )
    return result, growth.lines_of(result)


Runner = Callable[[Mapping[str, Any], "Display"], tuple[dict[str, Any], list[str]]]
RUNNERS: dict[str, Runner] = {
    "step": _step,
    "generate": _generate,
    "train": _train,
    "growth": _growth,
}
