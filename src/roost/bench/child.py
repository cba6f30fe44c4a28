"""The process of a contender: ``python -m roost.bench.child JOB.json``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from roost.bench.channel import Channel
from roost.bench.job import Job
from roost.bench.rivals import ENTRANTS


def main(path: Path) -> None:
    """Serve a job until the parent wants no more turns."""
    channel = Channel.open()
    job = Job.read(path)
    module, _, function = ENTRANTS[job.kind][job.name].runner.partition(":")
    try:
        import torch

        torch.set_num_threads(job.threads)
        getattr(import_module(module), function)(job, channel)
    except Exception as error:
        # The parent shows this line; the traceback goes to the log.
        channel.fail(f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
