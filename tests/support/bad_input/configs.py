"""Recipes, overrides and the command line."""

from __future__ import annotations

import torch

from support.bad_input.case import Arguments, case
from support.desk import Desk


def recipe(text: str) -> Arguments:
    return lambda desk: ["train", desk.write("recipe.toml", text), "--json"]


def sets(*overrides: str) -> Arguments:
    return lambda desk: desk.set(*overrides)


def says(*arguments: str) -> Arguments:
    return lambda desk: list(arguments)


def without_gpu(desk: Desk) -> list[str]:
    desk.patch.setattr(torch.cuda, "is_available", lambda: False)
    return desk.set("model.device=cuda")


def without_tracker(desk: Desk) -> list[str]:
    desk.patch.setattr("roost.run.trackers.find_spec", lambda name: None)
    return desk.set('output.trackers=["wandb"]')


CASES = [
    case(
        "recipe-too-deep",
        recipe("model = " + "[" * 5000 + "]" * 5000),
        "recipe 'recipe.toml': its tables or lists are nested too deeply",
    ),
    case(
        "key-too-deep",
        recipe("data.options." + ".".join("a" * 5000) + " = 1"),
        "recipe 'recipe.toml': its tables or lists are nested too deeply",
    ),
    case("override-too-deep", sets("data.options=" + "[" * 5000), "--set data.options", "too deep"),
    case(
        "override-of-a-key-too-deep",
        sets("data.options." + ".".join("a" * 5000) + "=1"),
        "--set data.options.a.a",
        "too deeply",
    ),
    case(
        "override-of-two-fields",
        sets("train.steps=1\ntrain.learning_rate=2"),
        "--set train.steps: its value goes on with 'train.learning_rate=2'",
        "a --set of its own",
    ),
    case("steps-beyond-counting", sets(f"train.steps={10**23}"), "train.steps = 1000", "less than"),
    case("seed-beyond-64-bits", sets(f"seed={10**20}"), "seed = 1000", "less than"),
    case("deadline-for-ever", sets("rewards.deadline_s=1e300"), "rewards.deadline_s", "less than"),
    case("workers-in-millions", sets("rewards.workers=1000000"), "rewards.workers", "less than"),
    case("memory-beyond-all", sets(f"rewards.memory_bytes={2**63}"), "memory_bytes", "less than"),
    case("recipe-absent", says("train", "my.toml", "--json"), "recipe 'my.toml': no such file"),
    case(
        "recipe-misspelt",
        lambda desk: (desk.recipe({}), ["train", "recipes.toml", "--json"])[-1],
        "recipe 'recipes.toml': no such file",
        "Did you mean 'recipe.toml'?",
    ),
    case(
        "model-in-the-recipes-place",
        says("train", "tiny", "--json"),
        "recipe 'tiny': no such file",
        "--set model.path=tiny",
    ),
    case(
        "folder-in-the-recipes-place",
        lambda desk: ["train", desk.model(), "--json"],
        "recipe 'model' is a folder",
        "--set model.path=model",
    ),
    case(
        "not-toml",
        recipe("[train]\nsteps = 1\nmodel: tiny\n"),
        "recipe 'recipe.toml' is not TOML",
        "line 3",
    ),
    case("not-text", lambda desk: ["train", desk.write("r", b"\xff\xfe\x00")], "is not UTF-8 text"),
    case(
        "field-misspelt",
        sets("train.lerning_rate=1e-4"),
        "train.lerning_rate: no such field",
        "Did you mean 'learning_rate'?",
    ),
    case(
        "section-misspelt",
        sets("rolout.generations=4"),
        "rolout: no such section",
        "Did you mean 'rollout'?",
    ),
    case(
        "field-without-its-section",
        sets("learning_rate=1e-4"),
        "learning_rate: no such section",
        "Did you mean 'lora.learning_rate' or 'train.learning_rate'?",
    ),
    case("section-as-a-value", sets("train=5"), "train = 5: is a section", "train.method"),
    case("not-a-number", sets("train.steps=many"), "train.steps = 'many'", "a whole number"),
    case("not-whole", sets("train.steps=1.5"), "train.steps = 1.5", "a whole number"),
    case("true-for-a-number", sets("train.steps=true"), "train.steps = True", "a number"),
    case("not-finite", sets("train.learning_rate=nan"), "train.learning_rate = nan", "finite"),
    case(
        "negative",
        sets("train.learning_rate=-1"),
        "train.learning_rate = -1",
        "greater than or equal to 0",
    ),
    case("too-large", sets("rollout.top_p=1.5"), "rollout.top_p = 1.5", "less than or equal to 1"),
    case(
        "one-generation",
        sets("rollout.generations=1"),
        "rollout.generations = 1",
        "greater than or equal to 2",
    ),
    case(
        "two-mistakes",
        sets("rollout.generations=1", "train.steps=0"),
        "2 problems",
        "rollout.generations = 1",
        "train.steps = 0",
    ),
    case(
        "budget-beyond-the-context",
        sets("rollout.max_completion_tokens=4096"),
        "rollout.max_completion_tokens = 4,096",
        "the model's context is 1,024 tokens",
        "Lower it",
    ),
    case(
        "budgets-beyond-the-context-together",
        sets("data.max_prompt_tokens=1020"),
        "data.max_prompt_tokens = 1,020 and rollout.max_completion_tokens = 8",
        "1,024",
    ),
    case("loss-unknown", sets("loss=ppo"), "loss.type = 'ppo'", "'dapo', 'grpo', 'dr_grpo'"),
    case(
        "loss-misspelt",
        sets("loss.type=dr-grpo"),
        "loss.type = 'dr-grpo'",
        "Did you mean 'dr_grpo'?",
    ),
    case("engine-unknown", sets("rollout=sglang"), "rollout.engine = 'sglang'", "'embedded'"),
    case("device-unknown", sets("model.device=tpu"), "model.device = 'tpu'", "'cpu', 'cuda'"),
    case("no-gpu", without_gpu, "model.device = 'cuda'", "torch finds no GPU", "'cpu'"),
    case("dtype-unknown", sets("model.dtype=fp16"), "model.dtype = 'fp16'", "'bfloat16'"),
    case(
        "optimizer-needs-a-gpu",
        sets("train.optimizer=adamw_8bit", "model.device=cpu"),
        "train.optimizer = 'adamw_8bit'",
        "needs a GPU",
    ),
    case(
        "warmup-longer-than-the-run",
        sets("train.warmup_steps=10"),
        "train.warmup_steps = 10",
        "at most train.steps = 2",
    ),
    case(
        "more-updates-than-prompts",
        sets("train.updates_per_batch=9"),
        "train.updates_per_batch = 9",
        "data.prompts_per_step = 2",
    ),
    case(
        "nothing-clipped",
        sets("loss.epsilon=2"),
        "loss.epsilon = 2.0: should be less than 1",
    ),
    case(
        "stop-is-not-a-list",
        sets("rollout.stop=END"),
        "rollout.stop = 'END'",
        "such as ['END']",
    ),
    case("stop-empty", sets('rollout.stop=[""]'), "rollout.stop: holds an empty string"),
    case(
        "system-prompt-without-chat",
        sets("data.chat=never", "data.system_prompt=Be brief."),
        "data.system_prompt: needs a chat template",
    ),
    case(
        "cache-below-one-sample",
        sets("rollout.cache_bytes=1"),
        "rollout.cache_bytes = 1: one sample needs 98304",
    ),
    case(
        "does-not-fit",
        sets(
            "rollout.cache_bytes=1000000000000000",
            "rollout.generations=50",
            "rollout.max_completion_tokens=1000",
            "data.prompts_per_step=1000",
        ),
        "the run does not fit: the generate phase needs",
        "key-value cache",
        "What makes it fit, the cheapest first",
        "--force",
    ),
    case("tracker-unknown", sets('output.trackers=["mlflow"]'), "'mlflow'", "'tensorboard'"),
    case(
        "tracker-not-installed",
        without_tracker,
        "output.trackers names 'wandb', which is not installed",
        "pip install wandb",
    ),
    case("set-without-a-value", sets("train.steps"), "--set 'train.steps'", "train.steps=100"),
    case("set-without-a-name", sets("=5"), "--set '=5'", "section.field=value"),
    case("set-too-deep", sets("train.steps.x=5"), "train.steps = {'x': 5}"),
    case("no-command", says(), "arguments are required: COMMAND"),
    case("command-misspelt", says("trian"), "unknown command 'trian'", "Did you mean 'train'?"),
    case("option-unknown", says("train", "--dryrun"), "no option --dryrun"),
    case(
        "field-as-an-option",
        says("train", "--learning-rate", "1e-4"),
        "no option --learning-rate",
        "--set train.learning_rate=VALUE",
    ),
    case("two-recipes", says("train", "a.toml", "b.toml"), "one argument too many: b.toml"),
    case(
        "config-of-nothing",
        says("config", "rolout"),
        "no section or field 'rolout'",
        "Did you mean 'rollout'?",
    ),
]
