"""What was captured from a machine, as it was captured; checks read nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MARK = "roost-doctor: "
"""Begins each line that a probe says, so that what libraries print is not taken for it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What another process said."""

    who: str
    """The process, as a person knows it: ``nvidia-smi``, ``rank 1 of the all-reduce``."""
    text: str = ""
    """Its standard output, as far as it came."""
    problem: str = ""
    """Why there is no more, such as "did not answer within 20 s". Empty when it ended well."""
    missing: bool = False
    """There is no such program."""
    late: bool = False
    """It did not answer by its deadline."""

    def said(self) -> list[dict[str, Any]]:
        """The lines that a probe said, as objects."""
        lines = [line for line in self.text.splitlines() if line.startswith(MARK)]
        return [json.loads(line.removeprefix(MARK)) for line in lines]

    def last(self) -> dict[str, Any]:
        """The last line that a probe said; empty when it said none."""
        return (self.said() or [{}])[-1]


NOT_ASKED = Answer(who="nobody")
"""In place of an answer where there was nothing to ask about."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system, by a path in it."""

    path: str
    what_for: str
    total: int
    free: int
    """Bytes that this user may write."""
    writable: bool = True


@dataclass(frozen=True, slots=True)
class Package:
    """An installed distribution."""

    version: str
    requires: tuple[str, ...] = ()
    """Its ``Requires-Dist`` lines."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A machine."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Text of files under /proc and /sys, and of a few others, by path."""
    folders: frozenset[str] = frozenset()
    """Folders under /sys that are there."""
    pci: Mapping[str, str] = field(default_factory=dict)
    """For each NVIDIA display device, by address (0000:18:00.0): its path under /sys/devices,
    which names the bridges above it."""
    env: Mapping[str, str] = field(default_factory=dict)
    cpus: int = 1
    affinity: int = 1
    """CPUs that this process may run on."""
    memlock: int | None = None
    """Bytes that a process may lock in memory; None is no limit."""
    disks: tuple[Disk, ...] = ()
    shm: Disk | None = None
    """/dev/shm."""
    packages: Mapping[str, Package] = field(default_factory=dict)
    """By normalised name."""
    packages_absent: frozenset[str] = frozenset()
    """Names that were looked for and are not installed."""
    smi: Answer = NOT_ASKED
    """``nvidia-smi``."""
    smi_gpus: Answer = NOT_ASKED
    """``nvidia-smi --query-gpu``."""
    smi_topology: Answer = NOT_ASKED
    """``nvidia-smi topo -m``."""
    smi_peers: Answer = NOT_ASKED
    """``nvidia-smi topo -p2p r``."""
    lspci: Answer = NOT_ASKED
    """``lspci -vvv -D``."""
    torch: Answer = NOT_ASKED
    """``probes.torch_build``."""
    peers: Answer = NOT_ASKED
    """``probes.peers``."""
    all_reduce: tuple[Answer, ...] = ()
    """``probes.all_reduce``, by rank."""
    parts: Mapping[str, Answer] = field(default_factory=dict)
    """``probes.parts``, by part."""
