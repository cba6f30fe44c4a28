"""Each wrong field or value, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from roost.config.loading import build_config
from roost.errors import ConfigError

PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"train": {"step": 3}}, r"train\.step: no such field\. Did you mean 'steps'\?"),
    ({"trian": {}}, r"trian: no such section or field\. Did you mean 'train'\?"),
    ({"rollout": {"engine": "embeded"}}, r"rollout\.engine = 'embeded'.*Did you mean 'embedded'"),
    ({"rollout": {"generations": 1}}, r"rollout\.generations = 1: .*greater than or equal to 2"),
    ({"rollout": {"top_p": 1.5}}, r"rollout\.top_p = 1\.5: .*less than or equal to 1"),
    ({"rollout": {"temperature": 0}}, r"rollout\.temperature = 0: .*greater than 0"),
    ({"train": {"steps": "many"}}, r"train\.steps = 'many': should be a whole number"),
    ({"train": {"steps": 2.5}}, r"train\.steps = 2\.5: should be a whole number"),
    ({"train": {"learning_rate": -1}}, r"train\.learning_rate = -1"),
    ({"loss": "ppo"}, r"loss\.type = 'ppo': allowed are 'dapo', 'grpo', 'dr_grpo', 'bnpo'"),
    ({"loss": {"epsilon": 1.0}}, r"loss\.epsilon = 1\.0: should be less than 1"),
    ({"loss": {"delta": 1.1}}, r"loss\.delta = 1\.1: should be above 1 \+ epsilon_high = 1\.2"),
    (
        {"correction": "tis"},
        r"correction\.mode = 'tis': allowed are 'auto', 'off', 'truncate', 'mask'",
    ),
    ({"correction": {"level": "geo"}}, r"level = 'geo': allowed are 'token', 'sequence'"),
    ({"correction": {"min": -0.1}}, r"correction\.min = -0\.1: .*greater than or equal to 0"),
    ({"correction": {"max": 0}}, r"correction\.max = 0: .*greater than 0"),
    ({"correction": {"min": 1.5}}, r"correction\.min = 1\.5: should be at most 1, .*mode = 'off'"),
    ({"correction": {"max": 0.5}}, r"correction\.max = 0\.5: should be at least 1, .*mode = 'off'"),
    ({"correction": {"min": 1, "max": 1}}, r"min = 1: should be below correction\.max = 1"),
    ({"rollout": {"staleness": 2}}, r"rollout\.staleness = 2: .*less than or equal to 1"),
    ({"rollout": {"staleness": 1}}, r"staleness = 1: is of rollout\.engine = 'vllm' with .*server"),
    (
        {"rollout": {"staleness": 1, "engine": "vllm"}},
        r"staleness = 1: is of rollout\.engine = 'vllm' with .*server",
    ),
    (
        {
            "rollout": {"staleness": 1, "engine": "vllm", "mode": "server", "launch": True},
            "correction": "off",
        },
        r"staleness = 1: samples are one batch older .* set it to 'truncate' or 'mask'",
    ),
    ({"correction": {"cap": 3}}, r"correction\.cap: no such field"),
    ({"train": {"warmup_steps": 300}}, r"warmup_steps = 300: should be at most train\.steps = 200"),
    ({"train": {"updates_per_batch": 9}}, r"at most data\.prompts_per_step = 8"),
    ({"rewards": []}, r"rewards\.functions: is empty"),
    ({"rewards": ["a.py:f", "b.py:f"]}, r"2 are called 'f'"),
    ({"rewards": [{"weight": 1.0}]}, r"rewards\.functions\.0\.function: is required"),
    (
        {"rewards": [{"function": "a", "wieght": 1}]},
        r"wieght: no such field\. Did you mean 'weight'",
    ),
    ({"rewards": [{"function": "a", "weight": 0}]}, r"every weight is 0"),
    ({"data": {"chat": "never", "system_prompt": "x"}}, r"data\.system_prompt: needs a chat"),
    ({"output": {"trackers": ["wandbb"]}}, r"output\.trackers\.0 = 'wandbb'.*'wandb'"),
    ({"steps": 3}, r"steps: no such section\. Did you mean 'train\.steps'\?"),
    ({"generations": 3}, r"Did you mean 'eval\.generations' or 'rollout\.generations'\?"),
    ({"train": 5}, r"train = 5: is a section; set its fields, such as train\.method"),
    ({"train": {"steps": True}}, r"train\.steps = True: should be a number, not true or false"),
    ({"train": {"learning_rate": float("inf")}}, r"= inf: should be a finite number"),
    ({"lora": {"targets": 3}}, r"lora\.targets = 3: should be text in quotes or a list$"),
    ({"lora": {"targets": [3]}}, r"^lora\.targets\.0 = 3: should be text in quotes$"),
    ({"rewards": "numeric"}, r"= 'numeric': should be a list, such as \['numeric'\]"),
    ({"data": {"shuffle": "maybe"}}, r"data\.shuffle = 'maybe': should be true or false"),
    ({"data": {"options": 3}}, r"data\.options = 3: should be a table, such as \{ key = 1 \}"),
    ({"model": {"dtype": "float16"}}, r"model\.dtype = 'float16': allowed are 'auto', 'bfloat16'"),
]


@pytest.mark.parametrize(("mapping", "message"), PROBLEMS)
def test_each_problem_is_said(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        build_config(mapping)
    assert "\n" not in str(error.value)


def test_crossed_bounds_are_two_problems() -> None:
    with pytest.raises(ConfigError, match=r"2 problems:\n.*min = 3: .*\n.*max = 0\.5: "):
        build_config({"correction": {"min": 3, "max": 0.5}})


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ConfigError, match="2 problems") as error:
        build_config({"train": {"step": 3}, "rollout": {"generations": 0}})
    assert str(error.value).count("\n  - ") == 2
