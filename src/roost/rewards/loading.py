"""From ``rewards.functions`` to functions, checked before anything runs."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from roost.config import RewardsConfig, RewardSpec
from roost.errors import RewardError, did_you_mean
from roost.references import find_file, load_file, load_reference
from roost.rewards.builtin import BUILTINS
from roost.samples import Prompt

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

    def code_digest(self) -> str | None:
        """Tells one version of its code from another: of a file or module, all of it.

        None for a built-in, whose code is Roost's, and where Python has no source.
        """
        try:
            if isinstance(self.origin, bytes):
                code = inspect.getsource(self.function).encode()
            elif self.origin[0] == "builtin":
                return None
            else:
                code = Path(inspect.getfile(self.function)).read_bytes()
        except (OSError, TypeError):  # inspect: no source, or a callable of another kind
            return None
        return hashlib.sha256(code).hexdigest()[:16]


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
        RewardError: a name is unknown, a file does not import, a function is not there, or it does
            not take its args.
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
        own = reference if reference.endswith(".py") else "file.py"
        near = "" if reference.endswith(".py") else did_you_mean(reference, BUILTINS)
        raise RewardError(
            f"rewards.functions: no reward {reference!r}.{near} A function of your own is named "
            f"'{own}:function'."
        )
    name = spec.name or reference.rpartition(":")[2]
    _check_kind(function, name)
    reward = Reward(name, spec.weight, function, dict(spec.args), origin)
    _check_args(reward)
    return reward


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


def check_columns(rewards: Sequence[Reward], prompts: Sequence[Prompt]) -> None:
    """Say before step 0 that a reward asks for something that nobody gives it.

    Raises:
        RewardError: naming the reward, the argument, and the columns that there are.
    """
    columns = sorted({name for prompt in prompts for name in prompt.columns})
    for reward in rewards:
        for name in _needed(reward):
            if name not in columns:
                raise RewardError(
                    f"reward {reward.name!r} needs {name!r}, which is neither a column of the data "
                    f"(there are: {', '.join(columns) or 'none'}), nor in its args, nor one of "
                    f"{', '.join(OFFERED)}.{_only_near(name, columns)} Rename the argument, or add "
                    "the column or the args."
                )
            lacking = next((prompt for prompt in prompts if name not in prompt.columns), None)
            if lacking is not None:
                raise RewardError(
                    f"reward {reward.name!r} needs {name!r}, a column that some rows lack, the "
                    f"first with the prompt {str(lacking.content)[:100]!r}. Add it to every row."
                )


def _needed(reward: Reward) -> Iterator[str]:
    """Arguments without a default that neither Roost nor ``args`` gives."""
    for parameter in inspect.signature(reward.function).parameters.values():
        needed = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if needed and parameter.name not in {*OFFERED, *reward.args}:
            yield parameter.name


_WORDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "str": ((str,), "text"),
}
"""Annotations of arguments that a recipe's value can be compared with."""


def _check_args(reward: Reward) -> None:
    """Arguments that the function does not take, or that are of another kind than it says."""
    parameters = inspect.signature(reward.function).parameters
    for name, value in reward.args.items():
        if not _takes(reward.function, name):
            near = _only_near(name, [n for n in parameters if n not in OFFERED])
            raise RewardError(
                f"reward {reward.name!r} takes no argument {name!r}.{near or ' Take it out.'}"
            )
        annotation = parameters[name].annotation if name in parameters else ""
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
        kinds, word = _WORDS.get(text, ((object,), ""))
        if not isinstance(value, kinds) or (isinstance(value, bool) and word):
            raise RewardError(f"reward {reward.name!r}: args.{name} = {value!r} should be {word}.")
    if reward.function is BUILTINS["format"] and "pattern" in reward.args:
        _check_pattern(reward)


def _check_kind(function: Callable[..., Any], name: str) -> None:
    """What is callable and yet gives no list of numbers when called."""
    problem = ""
    if inspect.isclass(function):
        problem = "is a class. Name a function; one that calls an instance of it will do"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        problem = "yields its numbers. Return them in a list"
    if problem:
        raise RewardError(f"reward {name!r} {problem}.")


def _check_pattern(reward: Reward) -> None:
    pattern = reward.args["pattern"]
    try:
        re.compile(pattern)
    except re.error as error:
        raise RewardError(
            f"reward {reward.name!r}: args.pattern = {pattern!r} is not a regular expression: "
            f"{error}. Put a backslash before a character that stands for itself."
        ) from None


def _takes(function: Callable[..., Any], name: str) -> bool:
    return bool(accepted(function, {name: None}))


def _only_near(name: str, columns: Collection[str]) -> str:
    hint = did_you_mean(name, columns)
    return hint if "Did you mean" in hint else ""
