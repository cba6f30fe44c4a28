"""``python -m roost.doctor.probes.parts NAME``: does a small piece of what a part is for.

Says ``works`` with what was done, or ``idle`` with why it could not be tried here; anything else
is an exception, whose last line the doctor quotes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from roost.doctor.probes.saying import say


class PartBroken(Exception):
    """The part ran, and did something else than it should."""


def main(name: str) -> None:
    """Try one part."""
    PROBES[name]()


def _math_verify() -> None:
    from roost.rewards.builtin import math

    scores = math([r"so it is $\frac{1}{2}$", "$0.3$"], ["0.5", "0.5"])
    if scores != [1.0, 0.0]:
        raise PartBroken(f"1/2 and 0.3 against 0.5 score {scores}, not [1.0, 0.0]")
    say(works="told 1/2 from 0.3")


def _reasoning_gym() -> None:
    dataset = import_module("reasoning_gym").create_dataset("basic_arithmetic", size=1, seed=0)
    row = dataset[0]
    score = dataset.score_answer(row["answer"], row)
    if score != 1.0:
        raise PartBroken(f"the right answer of its own task scores {score}")
    say(works="made a task and scored its answer")


def _bitsandbytes() -> None:
    import torch

    optim = import_module("bitsandbytes").optim
    if not torch.cuda.is_available():
        say(idle="its 8-bit optimizer needs a GPU")
        return
    # From 4096 elements on bitsandbytes keeps moments in 8 bits.
    weight = torch.nn.Parameter(torch.ones(128, 64, device="cuda"))
    optimizer = optim.AdamW8bit([weight], lr=0.1)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    state = optimizer.state[weight]["state1"].dtype
    if state != torch.uint8 or not bool((weight < 1.0).all()):
        raise PartBroken(f"one 8-bit step gave moments of {state} and a weight of {weight.max()}")
    say(works="took an 8-bit step")


def _tracker(name: str) -> Callable[[], None]:
    def probe() -> None:
        from roost.run.trackers import open_trackers

        with tempfile.TemporaryDirectory() as folder:
            os.environ.update(WANDB_MODE="offline", WANDB_DIR=folder, TRACKIO_DIR=folder)
            run = Path(folder) / "doctor"
            run.mkdir()
            (tracker,) = open_trackers([name], run, {"train": {"steps": 1}})
            tracker.log(1, {"reward": 0.5})
            tracker.close()
            if not any(path.is_file() for path in Path(folder).rglob("*")):
                raise PartBroken("it wrote no file")
        say(works="recorded a step offline")

    return probe


def _vllm() -> None:
    import torch

    platform = import_module("vllm.platforms").current_platform
    device = str(platform.device_type)
    wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if device != wanted:
        raise PartBroken(
            f"its platform is {device or 'unspecified'!r}, torch's is {wanted!r}: it was built for "
            "another"
        )
    # The import of the compiled kernels is where another torch than its own shows.
    if find_spec("vllm._C") is not None:
        import_module("vllm._C")
    say(works=f"its platform is {device}")


PROBES: dict[str, Callable[[], None]] = {
    "math-verify": _math_verify,
    "reasoning-gym": _reasoning_gym,
    "bitsandbytes": _bitsandbytes,
    "tensorboard": _tracker("tensorboard"),
    "trackio": _tracker("trackio"),
    "wandb": _tracker("wandb"),
    "vllm": _vllm,
}

if __name__ == "__main__":
    main(sys.argv[1])
