"""A contender that behaves as its first argument says; ``roost.bench.contender`` runs it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from roost.bench.channel import Channel
from roost.bench.turns import Turn


def turn(step_s: float, tokens: int = 100) -> Turn:
    """A turn of which half is generation and half training."""
    half = step_s / 2
    return Turn(step_s, half, 0.0, half, tokens, tokens, 4, peak_bytes=1000)


def start_programs() -> None:
    """Start one program after another, for ever."""
    while True:
        subprocess.run(["true"], check=True)


def main(behaviour: str, *arguments: str) -> None:
    channel = Channel.open()
    print("a library's greeting")  # must not reach the parent
    if behaviour == "dies loading":
        sys.exit("no such model")
    if behaviour == "cannot load":
        channel.fail("ModelError: no\n  weights")
        sys.exit(1)
    if behaviour == "hangs loading":
        time.sleep(600)
    if behaviour == "starts programs":
        for _ in range(3):
            threading.Thread(target=start_programs, daemon=True).start()
    channel.ready({"threads": 1})
    for number, _ in enumerate(channel.goes()):
        if behaviour == "steps":
            channel.report(turn(float(arguments[min(number, len(arguments) - 1)])))
        elif behaviour == "starts programs":
            channel.report(turn(1.0))
        elif behaviour == "dies":
            print("out of luck", file=sys.stderr)
            sys.exit(3)
        elif behaviour == "hangs":
            time.sleep(600)
        elif behaviour == "prints garbage":
            channel._reports.write("Loading: 100%\n")
        elif behaviour == "reports nonsense":
            channel._reports.write('{"turn": {"step_s": -1}}\n')
        else:
            raise ValueError(behaviour)


if __name__ == "__main__":
    main(*sys.argv[1:])
