"""Errors a person can act on: each names the thing, its value, what is allowed, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RoostError(Exception):
    """Any error that Roost raises on purpose; the command line prints it as one message."""


class ConfigError(RoostError):
    """A field of the configuration is unknown, malformed, or contradicts another."""


class ModelError(RoostError):
    """A model or tokenizer cannot be loaded, or cannot be trained as asked."""


class DataError(RoostError):
    """A prompt source cannot be read, or a row of it cannot be used."""


class RewardError(RoostError):
    """A reward cannot be loaded, or every reward of a step failed."""


class EngineError(RoostError):
    """A rollout engine cannot do what was asked of it, or did something wrong."""


class SyncError(EngineError):
    """The proof of a sync does not hold: the engine has other weights than the trainer."""


class CheckpointError(RoostError):
    """A run folder or checkpoint is damaged, in use, or belongs to another run."""


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name closest to ``name``, or None when none is close.

    >>> nearest("generatoins", ["generations", "temperature"])
    'generations'
    """
    matches = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """A sentence to append to an error: the nearest name, or all the names when few.

    >>> did_you_mean("lerning_rate", ["learning_rate", "steps"])
    " Did you mean 'learning_rate'?"
    """
    options = sorted(allowed)
    match = nearest(name, options)
    if match is not None:
        return f" Did you mean {match!r}?"
    return f" Known: {', '.join(options)}." if 0 < len(options) <= 20 else ""
