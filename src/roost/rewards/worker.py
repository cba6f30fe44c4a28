"""The reward worker: a process of its own that loads the rewards and scores one task at a time.

Started as ``python -m roost.rewards.worker FD``, with a pipe at file descriptor FD. It reads
pickled messages from the run that started it and nothing else. Its parent, the keeper, ends it with
the run, and whatever its rewards have started with it.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from roost.rewards.keeper import split_from_keeper
from roost.rewards.loading import accepted, load_origin

Outcome = tuple[float | None, str | None, str]
"""A value, or None with the kind of failure and its message."""


def main() -> None:
    """Load the rewards, say so, and score until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which stops us cleanly
    split_from_keeper(int(sys.argv[1]))
    connection = Connection(int(sys.argv[1]))
    sys.stdout = sys.stderr  # prints of a reward go to the log, never into the protocol
    setup = connection.recv()
    sys.path[:] = setup["path"]
    rewards = [(r["name"], load_origin(r["origin"]), r["args"]) for r in setup["rewards"]]
    _bound_memory(setup["memory_bytes"])
    own_pid = os.getpid()
    connection.send("ready")
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        outcomes = [_score(function, args, task) for _, function, args in rewards]
        if os.getpid() != own_pid:
            os._exit(0)  # a reward forked: its child must not answer as well
        connection.send(outcomes)


def _score(
    function: Callable[..., Any], args: Mapping[str, Any], task: Mapping[str, Any]
) -> Outcome:
    """One reward of one completion; whatever the function does, an outcome."""
    try:
        result = function(**accepted(function, {**task, **args}))
        if inspect.isawaitable(result):
            result = asyncio.run(_await(result))
    except MemoryError:
        return None, "memory", "it ran out of the memory that rewards.memory_bytes allows"
    except Exception as error:  # noqa: BLE001 - whatever a reward raises costs one sample
        return None, "raised", _describe(error)
    try:
        return check_result(result)
    except Exception as error:  # noqa: BLE001 - what it returned may raise when looked at
        return None, "type", f"its result cannot be read: {_describe(error)}"


def _describe(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error of their own may not even say what it is
        return type(error).__name__


async def _await(result: Any) -> Any:
    return await result


def check_result(result: Any) -> Outcome:
    """What a reward returned for one completion, as a finite number or a failure."""
    listed = isinstance(result, Sequence) and not isinstance(result, (str, bytes))
    if not listed and not hasattr(result, "tolist"):
        return None, "type", f"it returned a {type(result).__name__}; a list of numbers is needed"
    values = result.tolist() if hasattr(result, "tolist") else list(result)
    if not isinstance(values, list) or len(values) != 1:
        count = len(values) if isinstance(values, list) else "no"
        return None, "count", f"it returned {count} values for 1 completion"
    value = values[0]
    if value is None:
        return None, "none", "it returned None"
    try:
        if isinstance(value, (str, bytes)):
            # It may hold a number and is none: mostly an answer that was not compared.
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None, "type", f"it returned {type(value).__name__} {value!r:.80}; not a number"
    if not math.isfinite(number):
        return None, "nan", f"it returned {number}"
    return number, None, ""


def _bound_memory(extra: int | None) -> None:
    if extra is None:
        return
    used = _address_space()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, used + extra))


def _address_space() -> int:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    return int(statm.read_text().split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
