"""From ``rewards.functions`` to functions, checked before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from roost.config import RewardsConfig, RewardSpec
from roost.errors import RewardError, did_you_mean
from roost.references import find_file, load_file, load_reference
from roost.rewards.builtin import BUILTINS

OFFERED = ("completions", "prompts", "completion_ids", "finish_reasons")
"""What every reward may ask for besides the columns of the data."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward function, with all that a worker process needs to load it again."""

    name: str
    weight: float
    function: Callable[..., Any] = field(repr=False)
    args: dict[str, Any]
    origin: tuple[str, ...] | bytes = field(repr=False)
    """``("builtin", name)``, ``("file", path, name)``, ``("module", reference)``, or a pickle."""

    def for_worker(self) -> dict[str, Any]:
        """What is sent to a worker, which calls ``load_origin`` on it."""
        return {"name": self.name, "args": self.args, "origin": self.origin}


def load_rewards(
    config: RewardsConfig,
    base_dir: Path,
    *,
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> list[Reward]:
    """The reward functions of a run.

    Args:
        config: ``rewards``.
        base_dir: Where relative paths of reward files start.
        functions: Python functions by the names that the configuration uses for them.

    Raises:
        RewardError: a name is unknown, a file does not import, or a function is not there.
    """
    return [_load(spec, base_dir, functions or {}) for spec in config.functions]


def _load(spec: RewardSpec, base_dir: Path, functions: Mapping[str, Callable[..., Any]]) -> Reward:
    reference = spec.function
    origin: tuple[str, ...] | bytes
    if reference in functions:
        function = functions[reference]
        origin = _pickle(function, reference)
    elif reference in BUILTINS:
        function, origin = BUILTINS[reference], ("builtin", reference)
    elif ":" in reference:
        function = load_reference(reference, base_dir, field="rewards.functions", error=RewardError)
        where, _, name = reference.rpartition(":")
        if where.endswith(".py"):
            path = find_file(where, base_dir, "rewards.functions", RewardError)
            origin = ("file", str(path), name)
        else:
            origin = ("module", reference)
    else:
        raise RewardError(
            f"rewards.functions: no reward {reference!r}.{did_you_mean(reference, BUILTINS)} "
            "A function of your own is named 'file.py:function'."
        )
    name = spec.name or reference.rpartition(":")[2]
    return Reward(name, spec.weight, function, dict(spec.args), origin)


def _pickle(function: Callable[..., Any], name: str) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(function)
    except Exception as error:
        raise RewardError(
            f"rewards: {name!r} cannot be sent to a worker process: {error}. Keep what it holds "
            "(files, models, locks) out of it, or put it in a file of its own."
        ) from error
    return pickled


def load_origin(origin: tuple[str, ...] | bytes) -> Callable[..., Any]:
    """In a worker: the function that an origin names."""
    if isinstance(origin, bytes):
        loaded: Callable[..., Any] = cloudpickle.loads(origin)
        return loaded
    kind, *rest = origin
    if kind == "builtin":
        return BUILTINS[rest[0]]
    if kind == "file":
        function: Callable[..., Any] = getattr(load_file(Path(rest[0])), rest[1])
        return function
    return load_reference(rest[0], Path.cwd(), field="rewards.functions", error=RewardError)


def accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the offered arguments that a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(offered)
    return {p.name: offered[p.name] for p in parameters if p.name in offered}


def check_columns(rewards: Sequence[Reward], columns: Collection[str]) -> None:
    """Say before step 0 that a reward asks for something that nobody gives it.

    Raises:
        RewardError: naming the reward, the argument, and the columns that there are.
    """
    for reward in rewards:
        offered = {*OFFERED, *columns, *reward.args}
        for parameter in inspect.signature(reward.function).parameters.values():
            needed = parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            )
            if needed and parameter.name not in offered:
                there = ", ".join(sorted(columns)) or "none"
                raise RewardError(
                    f"reward {reward.name!r} needs {parameter.name!r}, which is neither a column "
                    f"of the data (there are: {there}) nor in its args."
                    f"{_only_near(parameter.name, columns)}"
                )
        unknown = [name for name in reward.args if not _takes(reward.function, name)]
        if unknown:
            raise RewardError(f"reward {reward.name!r} takes no argument {unknown[0]!r}.")


def _takes(function: Callable[..., Any], name: str) -> bool:
    return bool(accepted(function, {name: None}))


def _only_near(name: str, columns: Collection[str]) -> str:
    hint = did_you_mean(name, columns)
    return hint if "Did you mean" in hint else ""
