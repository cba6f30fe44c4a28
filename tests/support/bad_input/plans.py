"""What `roost plan` is asked for."""

from __future__ import annotations

import json
from typing import Any

from support.bad_input.case import Arguments, case
from support.desk import Desk

CARDS = ["plan", "--model", "Qwen3-8B", "--gpu", "H100 SXM", "--gpus", "4", "--json"]


def asks(*arguments: str) -> Arguments:
    """A plan for four H100, with options that come later and so win."""
    return lambda desk: [*CARDS, *arguments]


def alone(*arguments: str) -> Arguments:
    return lambda desk: ["plan", "--json", *arguments]


def recipe(sections: dict[str, Any], *arguments: str) -> Arguments:
    return lambda desk: ["plan", desk.recipe(sections), "--json", *arguments]


def card_file(text: str, *arguments: str) -> Arguments:
    return lambda desk: [*CARDS, "--card-file", desk.write("cards.toml", text), *arguments]


def config(content: dict[str, Any]) -> Arguments:
    def arguments(desk: Desk) -> list[str]:
        return [*CARDS, "--model", desk.write("config.json", json.dumps(content))]

    return arguments


CASES = [
    case("no-model", alone("--gpu", "H100 SXM"), "--model", "such as --model Qwen3-8B"),
    case("no-card", alone("--model", "Qwen3-8B"), "--gpu", 'such as --gpu "H100 SXM"'),
    case("card-unknown", asks("--gpu", "H101"), "unknown card 'H101'", "Did you mean 'H100 SXM'?"),
    case(
        "model-unknown",
        asks("--model", "Lama-3.1-8B"),
        "model 'Lama-3.1-8B'",
        "Did you mean 'Llama-3.1-8B'?",
    ),
    case(
        "model-not-on-a-hub", asks("--model", "no-one/Qwen3-8C"), "'no-one/Qwen3-8C'", "'Qwen3-8B'"
    ),
    case("config-empty", config({}), "config.json has no"),
    case("processor-unknown", asks("--processor", "EPYC 9136"), "'EPYC 9136'", "Did you mean"),
    case("gpus-0", asks("--gpus", "0"), "--gpus: '0'", "a whole number from 1, or auto"),
    case("gpus-a-word", asks("--gpus", "two"), "--gpus: 'two'", "or auto"),
    case("nodes-negative", asks("--nodes", "-1"), "--nodes", "'-1'", "from 1"),
    case("generations-0", asks("--generations", "0"), "--generations: '0'", "from 1"),
    case("length-a-half", asks("--completion-length", "0.5"), "--completion-length: '0.5'"),
    case("beta-negative", asks("--beta=-0.1"), "--beta: '-0.1'", "a number from 0"),
    case("beta-nan", asks("--beta", "nan"), "--beta: 'nan'", "a number from 0"),
    case("price-infinite", asks("--price", "inf"), "--price: 'inf'", "a number from 0"),
    case("share-0", asks("--gpu-memory-utilization", "0"), "'0'", "above 0"),
    case("share-above-1", asks("--gpu-memory-utilization", "1.2"), "'1.2'", "up to 1"),
    case("mode-misspelt", asks("--mode", "serve"), "--mode 'serve'", "Did you mean 'server'?"),
    case("method-unknown", asks("--method", "dora"), "--method 'dora'", "lora, qlora, full"),
    case("sleep-level-3", asks("--sleep-level", "3"), "--sleep-level '3'", "0, 1, 2"),
    case(
        "heads-not-divided",
        asks("--tensor-parallel", "3"),
        "--tensor-parallel 3",
        "32 attention heads",
        "does not divide",
    ),
    case(
        "more-parallel-than-cards",
        asks("--tensor-parallel", "16"),
        "--tensor-parallel 16 does not go with 4 cards",
        "must equal the cards",
    ),
    case(
        "replicas-that-do-not-divide",
        asks("--mode", "colocate", "--replicas", "3"),
        "--replicas 3 does not go with 4 cards",
    ),
    case(
        "trainer-takes-every-card",
        asks("--mode", "server", "--trainer-gpus", "4"),
        "--trainer-gpus 4 does not go with 4 cards",
    ),
    case(
        "server-on-one-card",
        asks("--mode", "server", "--gpus", "1"),
        "--mode server needs at least 2 cards",
        "--gpus 2",
    ),
    case(
        "server-asleep",
        asks("--mode", "server", "--sleep-level", "1"),
        "--sleep-level 1",
        "--mode colocate",
    ),
    case(
        "target-misspelt",
        asks("--lora-targets", "q_proj,v_porj"),
        "--lora-targets 'v_porj'",
        "Did you mean 'v_proj'?",
    ),
    case(
        "mean-above-the-longest",
        asks("--completion-length", "512", "--mean-completion-length", "600"),
        "--mean-completion-length 600",
        "--completion-length 512",
    ),
    case(
        "no-number-of-cards-goes",
        alone("--model", "Qwen3-8B", "--gpu", "T4", "--mode", "server", "--sleep-level", "2"),
        "--sleep-level 2",
        "--mode colocate",
    ),
    case(
        "figure-misspelt",
        asks("--explain", "rollout.resident_rollout"),
        "--explain 'rollout.resident_rollout'",
        "Did you mean 'rollout.resident_rollouts'?",
    ),
    case("one-card-to-compare", alone("--model", "Qwen3-8B", "--compare", "H100"), "at least two"),
    case(
        "a-card-twice-named",
        asks("--compare", "H100,A100"),
        "--gpu: leave it out where --compare names the cards",
    ),
    case("two-views", asks("--search", "--sweep", "generations"), "--sweep", "--search"),
    case("order-misspelt", asks("--search", "headrom"), "Did you mean 'headroom'?"),
    case("sweep-of-what", asks("--sweep", "prompts"), "--sweep 'prompts'", "completion-length"),
    case("page-of-a-search", asks("--search", "--html", "p.html"), "--html"),
    case("page-nowhere", asks("--html", "no/such/p.html"), "--html 'no/such/p.html'"),
    case("option-misspelt", asks("--price-an-hour", "2"), "no option --price-an-hour"),
    case("option-misspelt-nearly", asks("--sleep-levle=1"), "Did you mean --sleep-level?"),
    case("set-without-a-recipe", asks("--set", "train.steps=1"), "--set", "none is given"),
    case("recipe-absent", alone("my.toml"), "recipe 'my.toml': no such file"),
    case(
        "layout-without-a-card",
        recipe({}, "--tensor-parallel", "2"),
        "--tensor-parallel",
        "Add --gpu NAME",
    ),
    case(
        "recipe-names-an-unknown-card",
        recipe({"plan": {"gpu": "H2000"}}),
        "unknown card 'H2000'",
        "Did you mean",
    ),
    case("recipe-with-no-cards", recipe({"plan": {"gpu": "T4", "gpus": 0}}), "plan.gpus = 0"),
    case("recipe-mode", recipe({"plan": {"mode": "serve"}}), "plan.mode = 'serve'", "'server'"),
    case(
        "cache-below-one-sample",
        recipe({"rollout": {"cache_bytes": 1}}),
        "rollout.cache_bytes = 1",
        "Raise it",
    ),
    case("card-file-absent", asks("--card-file", "my.toml"), "cannot read 'my.toml'"),
    case("card-file-not-toml", card_file("cards: x"), "'cards.toml' is not TOML"),
    case("card-file-without-cards", card_file("x = 1"), "has no card", '[cards."NAME"]'),
    case(
        "card-field-misspelt",
        card_file('[cards."My"]\nmemory_listed = 24\n'),
        "card 'My'",
        "'memory_listed_gb'",
    ),
    case(
        "card-of-no-memory",
        card_file('[cards."My"]\nmemory_listed_gb = 0\nbandwidth_gbps = 1\ntdp_w = 1\n'),
        "memory_listed_gb = 0",
        "above 0",
    ),
]
