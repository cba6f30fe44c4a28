"""Capturing a machine's facts: the one module that reads it. Checks read what is captured here."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from roost.doctor.ask import Question, ask, ask_together
from roost.doctor.checks import allocator, parts, versions
from roost.doctor.facts import Answer, Disk, Facts, Package
from roost.doctor.readings import nvidia, torch_build

COMMAND_S, TORCH_S, PEERS_S, ALL_REDUCE_S, PART_S = 30.0, 120.0, 120.0, 120.0, 120.0
"""Deadlines in seconds. Importing torch from a cold disk takes up to a minute."""
ALL_REDUCE_MB = 256
ROOT = Path("/")
"""Where /proc and /sys are."""
DEVICES = "/sys/bus/pci/devices"
CGROUPS = Path("/sys/fs/cgroup")
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers; an NVIDIA card has an audio function besides."""
ENVIRONMENT = re.compile(r"CUDA_|NVIDIA_|NCCL_|PYTORCH_|OMP_|MKL_|HF_HOME|TMPDIR")
FILES = (
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/self/status",
    "/proc/cmdline",
    "/proc/driver/nvidia/version",
    "/sys/devices/system/node/online",
)


def collect(here: Path) -> Facts:
    """Capture this machine.

    Args:
        here: The folder that runs would be written to.
    """
    pci = _pci()
    packages = _packages()
    facts = Facts(
        files=dict(_files([*FILES, *_device_files(pci), *_cgroup_files()])) | _vllm_pool(),
        folders=frozenset(
            folder for card in pci if _at(folder := f"{DEVICES}/{card}/iommu_group").is_dir()
        ),
        pci=pci,
        env={name: value for name, value in os.environ.items() if ENVIRONMENT.match(name)},
        cpus=os.cpu_count() or 1,
        affinity=_affinity(),
        memlock=_memlock(),
        disks=_disks(here),
        shm=_disk(Path("/dev/shm"), "shared memory") if Path("/dev/shm").is_dir() else None,
        packages={name: package for name, package in packages.items() if package},
        packages_absent=frozenset(name for name, package in packages.items() if not package),
    )
    return _with_cards(_with_commands(facts))


def _with_commands(facts: Facts) -> Facts:
    """What needs no GPU to ask, all at the same time."""
    smi = "nvidia-smi"
    query = [smi, f"--query-gpu={','.join(nvidia.QUERY)}", "--format=csv,noheader"]
    tried = {n: p for n, p in parts.PARTS.items() if parts.installed(p, facts.packages)}
    questions = [
        Question(smi, [smi], COMMAND_S),
        Question(f"{smi} --query-gpu", query, COMMAND_S),
        Question(f"{smi} topo", [smi, "topo", "-m"], COMMAND_S),
        Question(f"{smi} topo", [smi, "topo", "-p2p", "r"], COMMAND_S),
        Question("lspci", ["lspci", "-vvv", "-D"], COMMAND_S),
        _probe("torch", "torch_build", [], TORCH_S),
        *(_probe(name, "parts", [name], PART_S) for name in tried),
    ]
    first, gpus, topology, peers, lspci, torch, *answers = ask_together(questions)
    return replace(
        facts,
        smi=first,
        smi_gpus=gpus,
        smi_topology=topology,
        smi_peers=peers,
        lspci=lspci,
        torch=torch,
        parts=dict(zip(tried, answers, strict=True)),
    )


def _with_cards(facts: Facts) -> Facts:
    """Copies between cards, then the all-reduce: one after the other, as both are timed."""
    count = len(torch_build.visible(facts))
    if count > 1:
        facts = replace(facts, peers=ask(_probe("the copies between cards", "peers", [], PEERS_S)))
    if count:
        facts = replace(facts, all_reduce=all_reduce("nccl", count, ALL_REDUCE_MB, ALL_REDUCE_S))
    return facts


def all_reduce(backend: str, world: int, megabytes: int, deadline_s: float) -> tuple[Answer, ...]:
    """What each rank of an all-reduce says."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        return tuple(
            ask_together(
                [
                    _probe(
                        f"rank {rank} of the all-reduce",
                        "all_reduce",
                        [backend, str(rank), str(world), meeting, str(megabytes)],
                        deadline_s,
                    )
                    for rank in range(world)
                ]
            )
        )


def _probe(who: str, module: str, arguments: list[str], deadline_s: float) -> Question:
    command = [sys.executable, "-m", f"roost.doctor.probes.{module}", *arguments]
    # The child finds what this process does, however that was started.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return Question(who, command, deadline_s, {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"})


def _at(path: str) -> Path:
    return ROOT / path.lstrip("/")


def _files(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        # Absent or closed to this user: its absence from the facts is what checks go by.
        if os.access(_at(path), os.R_OK):
            yield path, _at(path).read_text(errors="replace")


def _pci() -> dict[str, str]:
    """NVIDIA's display devices and where they hang, as ``Facts.pci`` says."""
    found = {}
    folder = _at(DEVICES)
    for device in sorted(folder.iterdir()) if folder.is_dir() else []:
        vendor, kind = f"{DEVICES}/{device.name}/vendor", f"{DEVICES}/{device.name}/class"
        files = dict(_files([vendor, kind]))
        if files.get(vendor, "").strip() == "0x10de" and files[kind].startswith(DISPLAY_CLASSES):
            found[device.name] = os.path.realpath(device)
    return found


def _device_files(cards: Iterable[str]) -> list[str]:
    names = ("numa_node", "local_cpulist", "iommu_group/type")
    return [f"{DEVICES}/{card}/{name}" for card in cards for name in names]


def _cgroup_files() -> list[str]:
    """Limits of the groups of this process and of all above them, in both versions of cgroups."""
    second = ("cpu.max", "memory.max", "memory.current", "memory.stat")
    first = {
        "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us"),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
    }
    own = dict(_files(["/proc/self/cgroup"]))
    paths = []
    for line in own.get("/proc/self/cgroup", "").splitlines():
        _, controllers, group = line.split(":", 2)
        inside = Path(group.lstrip("/"))
        for folder in (inside, *inside.parents):
            if not controllers:
                paths += [f"{CGROUPS / folder}/{name}" for name in second]
            for controller in controllers.split(","):
                names = first.get(controller, ())
                paths += [f"{CGROUPS / controller / folder}/{name}" for name in names]
    return paths


def _vllm_pool() -> dict[str, str]:
    """The text of vLLM's allocator for sleep mode, read without importing vLLM."""
    for entry in sys.path:
        path = Path(entry) / allocator.VLLM_POOL
        if path.is_file():
            return {allocator.VLLM_POOL: path.read_text(errors="replace")}
    return {}


def _packages() -> dict[str, Package | None]:
    """The subjects of the version check, what they need, and the optional parts."""
    found = {name: _package(name) for name in versions.SUBJECTS}
    needed = {
        canonicalize_name(Requirement(line).name)
        for package in found.values()
        if package
        for line in package.requires
    }
    optional = {name for part in parts.PARTS.values() for name in part.packages}
    return found | {name: _package(name) for name in (needed | optional) - found.keys()}


def _package(name: str) -> Package | None:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return Package(found.version, tuple(found.requires or ()))


def _affinity() -> int:
    # macOS has no affinity: all CPUs are open to a process.
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return own or os.cpu_count() or 1


def _memlock() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _disks(here: Path) -> tuple[Disk, ...]:
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    places = {"runs": here, "models": home, "temporary files": Path(tempfile.gettempdir())}
    return tuple(_disk(path, what_for) for what_for, path in places.items())


def _disk(path: Path, what_for: str) -> Disk:
    """Of the nearest folder that is there: a cache may yet have to be made."""
    place = path.resolve()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    return Disk(str(place), what_for, usage.total, usage.free, os.access(place, os.W_OK))
