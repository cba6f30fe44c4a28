"""The keeper: the parent of a reward worker, which ends with it whatever its rewards have started.

Code that a reward runs may start sessions of its own, which no signal to the worker's process group
reaches. Every one of them is a descendant of the keeper; on Linux even those whose parents have
ended, since it adopts them (prctl(2), PR_SET_CHILD_SUBREAPER). Elsewhere such orphans escape.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from typing import NoReturn

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_END_DEADLINE_S = 4.0
"""Seconds for which the keeper goes on killing what goes on starting."""


def split_from_keeper(pipe: int) -> None:
    """Go on as a worker; the process that called becomes its keeper and never returns.

    The keeper ends all when the worker ends, when the run does, or at SIGTERM. It learns of the
    run's end from its standard input, a pipe that only the run holds and nobody writes to. The
    worker's standard input is empty, for rewards that read it.

    Args:
        pipe: The worker's alone: its end tells the run that the worker has died.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    news = _open_news()
    keeper = os.getpid()
    worker = os.fork()
    if worker:
        os.close(pipe)
        _keep(worker, news)
    # However the keeper ends, even by a kill that the run never asked for.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        sys.exit()
    _forget_news(news)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


_News = tuple[int, int]
"""The ends of a pipe that holds the number of each signal that came."""


def _open_news() -> _News:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return reader, writer


def _forget_news(news: _News) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for end in news:
        os.close(end)


def _keep(worker: int, news: _News) -> NoReturn:
    """Wait for the first reason to end, end all, and end as the worker did."""
    reader, _ = news
    status: int | None = None
    asked = False
    while status is None and not asked:
        ready, _, _ = select.select([0, reader], [], [])
        asked = 0 in ready or signal.SIGTERM in os.read(reader, 4096)
        status = _reap(worker)
    _end_descendants()
    if status is None:
        os._exit(0)  # nobody asks how it ended: it was told to
    if os.WIFSIGNALED(status):
        _die_of(os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def _reap(worker: int) -> int | None:
    """Bury who has died; returns the worker's status if it was among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == worker:
            found = status


def _end_descendants() -> None:
    """Kill all descendants. On Linux the orphans of each round become children for the next."""
    end = time.monotonic() + _END_DEADLINE_S
    while (family := psutil.Process().children(recursive=True)) and time.monotonic() < end:
        for process in family:
            try:
                process.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # It ended by itself, or took rights that are beyond ours.
        _reap(0)
        time.sleep(0.005)


def _die_of(number: int) -> NoReturn:
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # where the signal is one that does not end a process


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
