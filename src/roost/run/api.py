"""``roost.train`` and ``roost.evaluate``: the same as the command line, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from roost.config.loading import build_config
from roost.run.display import Display, QuietDisplay, TerminalDisplay
from roost.run.evaluate_model import config_for_model, evaluate_model
from roost.run.evaluation import PASS_REWARD, EvalResult
from roost.run.launch import PythonObjects, resume_run, start_run
from roost.run.report import RunResult

RewardLike = str | Mapping[str, Any] | Callable[..., Any]
"""A built-in or dotted name, a table as in a recipe, or a Python function."""


def train(
    *,
    data: Any = None,
    rewards: RewardLike | Sequence[RewardLike] | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    quiet: bool = False,
    **sections: Any,
) -> RunResult:
    """Train a model with GRPO.

    Args:
        data: As in a recipe (a source name or a table), or Python objects: a list of rows, a
            ``datasets.Dataset``, a generator function.
        rewards: Names, tables, or functions ``f(completions, **columns) -> list[float | None]``.
        resume: A run folder to go on with; then nothing else is needed unless data or rewards were
            Python objects, which must be given again.
        quiet: Show nothing.
        **sections: ``model="..."``, ``train={"steps": 100}``, and all other sections of a recipe.

    Returns:
        What improved and where the run folder is.

    Raises:
        RoostError: something is wrong with the run, by name.

    Example:
        >>> import roost
        >>> def digits(completions, **columns):
        ...     return [sum(c.isdigit() for c in text) / 10 for text in completions]
        >>> roost.train(rewards=[digits], train={"steps": 2})  # doctest: +SKIP
    """
    mapping, objects = _split_objects(sections, data, rewards)
    display: Display = QuietDisplay() if quiet else TerminalDisplay()
    if resume is not None:
        return resume_run(Path(resume), display, objects=objects)
    config = build_config(mapping)
    return start_run(config, Path.cwd(), display, objects=objects)


def evaluate(
    model: str | Path,
    *,
    data: Any = None,
    rewards: RewardLike | Sequence[RewardLike] | Mapping[str, Any] | None = None,
    generations: int = 1,
    pass_reward: float = PASS_REWARD,
    quiet: bool = True,
    **sections: Any,
) -> EvalResult:
    """Mean reward, pass@1 and pass@k of a model or a run, on its held-out prompts or any source."""
    mapping, objects = _split_objects(sections, data, rewards)
    subject = config_for_model(str(model), mapping, Path.cwd())
    display: Display = QuietDisplay() if quiet else TerminalDisplay()
    return evaluate_model(
        subject, display, generations=generations, pass_reward=pass_reward, objects=objects
    )


def _split_objects(
    sections: Mapping[str, Any], data: Any, rewards: Any
) -> tuple[dict[str, Any], PythonObjects]:
    """Separate Python objects from what a recipe could say, leaving their names in its place."""
    mapping = dict(sections)
    objects = PythonObjects()
    if data is not None:
        if isinstance(data, (str, Mapping)):
            mapping["data"] = data
        else:
            objects.data = data
    if rewards is not None:
        mapping["rewards"] = _name_functions(rewards, objects)
    return mapping, objects


def _name_functions(rewards: Any, objects: PythonObjects) -> Any:
    if isinstance(rewards, Mapping) and "functions" in rewards:
        return {**rewards, "functions": _name_functions(rewards["functions"], objects)}
    if callable(rewards) or isinstance(rewards, (str, Mapping)):
        rewards = [rewards]
    named: list[Any] = []
    for reward in rewards:
        if callable(reward):
            name = getattr(reward, "__name__", type(reward).__name__)
            objects.functions[name] = reward
            named.append({"function": name, "name": name})
        else:
            named.append(reward)
    return named
