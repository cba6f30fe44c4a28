"""``roost.train`` and ``roost.evaluate``: the same as the command line, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from roost.config import RunConfig
from roost.config.loading import build_config
from roost.data.sources import FROM_PYTHON
from roost.errors import ConfigError, nearest
from roost.run.display import Display, QuietDisplay, TerminalDisplay
from roost.run.evaluate_model import config_for_model, evaluate_model
from roost.run.evaluation import PASS_REWARD, EvalResult
from roost.run.launch import PythonObjects, resume_run, start_run
from roost.run.lock import alone_in_process
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
            ``datasets.Dataset``, a generator function; or a table with one as its ``source``.
        rewards: Names, tables, or functions ``f(completions, **columns) -> list[float | None]``;
            or tables with one as their ``function``.
        resume: A run folder to go on with; then nothing else is needed unless data or rewards were
            Python objects, which must be given again. Sections may set what a resumed run may
            change: ``train={"steps": 200}``.
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
    _check_names(sections, ("resume", "quiet"))
    mapping, objects = _split_objects(sections, data, rewards)
    display: Display = QuietDisplay() if quiet else TerminalDisplay()
    with alone_in_process():
        if resume is not None:
            return resume_run(Path(resume), display, objects=objects, sections=mapping)
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
    _check_names(sections, ("generations", "pass_reward", "quiet"))
    mapping, objects = _split_objects(sections, data, rewards)
    subject = config_for_model(str(model), mapping, Path.cwd())
    display: Display = QuietDisplay() if quiet else TerminalDisplay()
    with alone_in_process():
        return evaluate_model(
            subject, display, generations=generations, pass_reward=pass_reward, objects=objects
        )


def _check_names(sections: Mapping[str, Any], own: Sequence[str]) -> None:
    """A misspelt argument that is no section; misspelt sections are found with the fields.

    Raises:
        ConfigError: with the argument that was meant.
    """
    for name in sections:
        near = nearest(name, [*RunConfig.model_fields, *own])
        if near in own:
            raise ConfigError(f"{name}: no such argument. Did you mean {near!r}?")


def _split_objects(
    sections: Mapping[str, Any], data: Any, rewards: Any
) -> tuple[dict[str, Any], PythonObjects]:
    """Separate Python objects from what a recipe could say, leaving their names in its place."""
    mapping = {name: _plain(value) for name, value in sections.items()}
    objects = PythonObjects()
    if data is not None:
        mapping["data"] = _name_source(data, objects)
    if rewards is not None:
        mapping["rewards"] = _name_functions(rewards, objects)
    return mapping, objects


def _plain(value: Any) -> Any:
    """Paths as text, wherever they are in a section."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return value


def _name_source(data: Any, objects: PythonObjects) -> dict[str, Any]:
    if type(data).__name__ in ("DatasetDict", "IterableDatasetDict"):
        splits = ", ".join(map(repr, data))
        raise ConfigError(
            f"data is a {type(data).__name__} of the splits {splits}; give one of them."
        )
    table = _plain(data) if isinstance(data, Mapping) else {"source": _plain(data)}
    if not isinstance(table.get("source", ""), str):
        objects.data = table["source"]
        table["source"] = FROM_PYTHON
    return table


def _name_functions(rewards: Any, objects: PythonObjects) -> Any:
    if isinstance(rewards, Mapping) and "functions" in rewards:
        return {**rewards, "functions": _name_functions(rewards["functions"], objects)}
    if callable(rewards) or isinstance(rewards, (str, Mapping)):
        rewards = [rewards]
    if not isinstance(rewards, Iterable):
        return rewards  # which is refused with all else that a recipe may not say
    return [_name_function(reward, objects) for reward in rewards]


def _name_function(reward: Any, objects: PythonObjects) -> Any:
    table = {"function": reward} if callable(reward) else reward
    if not isinstance(table, Mapping) or not callable(table.get("function")):
        return reward
    function = table["function"]
    name = str(table.get("name") or getattr(function, "__name__", type(function).__name__))
    objects.functions[name] = function
    return {**table, "function": name, "name": name}
