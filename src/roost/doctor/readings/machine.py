"""What /proc and /sys say."""

from __future__ import annotations

import re
from collections.abc import Mapping

from roost.doctor.facts import Facts

UNLIMITED = 1 << 60
"""cgroup version 1 writes a number near 2**63 where there is no limit."""


def is_virtual(facts: Facts) -> bool:
    """Whether this is a virtual machine: its host owns the IOMMU and the bridges."""
    return bool(
        re.search(r"^flags\s*:.*\bhypervisor\b", facts.files.get("/proc/cpuinfo", ""), re.M)
    )


def cpu_list(text: str) -> set[int]:
    """CPUs or nodes as the kernel lists them.

    >>> sorted(cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    numbers: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def meminfo(facts: Facts, name: str) -> int | None:
    """A figure of /proc/meminfo in bytes."""
    match = re.search(rf"^{name}:\s+(\d+) kB", facts.files.get("/proc/meminfo", ""), re.M)
    return int(match.group(1)) * 1024 if match else None


def cpu_quota(facts: Facts) -> float | None:
    """CPUs that the cgroup of this process allows, or the tightest one above it; None is all."""
    quotas = []
    for path, text in facts.files.items():
        if path.endswith("/cpu.max"):
            quota, period = text.split()
        elif path.endswith("/cpu.cfs_quota_us"):
            quota = text.strip()
            period = facts.files.get(path.replace("quota", "period"), "100000")
        else:
            continue
        if quota not in ("max", "-1"):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def usable_cpus(facts: Facts) -> float:
    """CPUs that this process can keep busy."""
    return min(facts.affinity, cpu_quota(facts) or facts.affinity)


def memory_limits(facts: Facts) -> list[tuple[int, int]]:
    """The limit of each cgroup that has one, and what of it is in use and cannot be reclaimed."""
    limits = []
    for path, text in facts.files.items():
        folder, _, name = path.rpartition("/")
        if name not in ("memory.max", "memory.limit_in_bytes") or text.strip() == "max":
            continue
        limit = int(text)
        if limit >= UNLIMITED:
            continue
        current = "memory.current" if name == "memory.max" else "memory.usage_in_bytes"
        used = int(facts.files.get(f"{folder}/{current}", "0"))
        limits.append((limit, max(0, used - _file_cache(facts.files, folder))))
    return limits


def _file_cache(files: Mapping[str, str], folder: str) -> int:
    stat = files.get(f"{folder}/memory.stat", "")
    # Version 2 says "file", version 1 "total_cache": the page cache, and in it shared memory,
    # which cannot be reclaimed.
    cache = re.search(r"^(?:file|total_cache) (\d+)", stat, re.M)
    shared = re.search(r"^(?:shmem|total_shmem) (\d+)", stat, re.M)
    return (int(cache.group(1)) if cache else 0) - (int(shared.group(1)) if shared else 0)


def gib(count: float) -> str:
    """Bytes for a person: 79.1 GiB."""
    value = count / 2**30
    return f"{value:.0f} GiB" if value >= 100 else f"{value:.1f} GiB"
