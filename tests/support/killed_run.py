"""A run that kills itself at a named moment, as a power cut would.

``python killed_run.py FOLDER PHASE COUNT CONFIG_JSON``: trains into FOLDER with the configuration
(or resumes where FOLDER holds a run), and sends itself SIGKILL the COUNT-th time that the run says
it is waiting for something that starts with PHASE. An empty PHASE never kills. A PHASE such as
``call os.fsync`` kills at the COUNT-th call of a function instead, before it does anything; with
the PHASE ``seconds`` it is killed COUNT seconds after it began.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from roost.config.loading import build_config
from roost.run.display import QuietDisplay
from roost.run.folder import RunFolder
from roost.run.launch import PythonObjects, resume_run, start_run


class KillingDisplay(QuietDisplay):
    """Counts down the moments of one phase."""

    def __init__(self, phase: str, count: int) -> None:
        super().__init__()
        self._phase = phase
        self._left = count

    def waiting_for(self, what: str) -> None:
        if self._phase and what.startswith(self._phase):
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def kill_at_call(name: str, count: int) -> None:
    """Replace ``module.function`` or ``module.Class.method`` by one that ends the process."""
    where, _, attribute = name.rpartition(".")
    owner = pkgutil.resolve_name(where)
    real, left = getattr(owner, attribute), count

    def killing(*args: Any, **keywords: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **keywords)

    setattr(owner, attribute, killing)


def kill_after(seconds: float) -> None:
    """End the process wherever it is by then."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()


def main() -> None:
    folder, phase, count, config = sys.argv[1:5]
    torch.set_num_threads(1)
    if phase.startswith("call "):
        kill_at_call(phase.removeprefix("call "), int(count))
        phase = ""
    if phase == "seconds":
        kill_after(float(count))
        phase, count = "", "0"
    display = KillingDisplay(phase, int(count))
    if RunFolder(Path(folder)).is_run:
        resume_run(Path(folder), display, objects=PythonObjects())
    else:
        mapping = json.loads(config)
        mapping.setdefault("output", {})["folder"] = folder
        start_run(build_config(mapping), Path.cwd(), display, objects=PythonObjects())


if __name__ == "__main__":
    main()
