"""Machines as the doctor captures them: healthy ones, for tests to plant faults in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from roost.doctor.facts import MARK, Answer, Disk, Facts, Package
from roost.doctor.findings import Finding, Level

HERE = Path(__file__).parent
GIB = 2**30


def captured(machine: str, name: str) -> str:
    """A captured text."""
    return (HERE / machine / f"{name}.txt").read_text()


def said(who: str, *lines: dict[str, Any], problem: str = "", late: bool = False) -> Answer:
    """The answer of a probe."""
    text = "".join(f"{MARK}{json.dumps(line)}\n" for line in lines)
    return Answer(who, text, problem, late=late)


def torch_says(
    *gpus: dict[str, Any], version: str = "2.13.0+cu130", cuda: str | None = "13.0", **changes: Any
) -> Answer:
    """The answer of the torch probe."""
    archs = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
    line = {"version": version, "cuda": cuda, "hip": None, "archs": archs if cuda else []}
    return said("torch", {**line, "threads": 16, "error": "", "gpus": list(gpus), **changes})


def gpu(index: int, name: str, gib: float, capability: list[int], address: str) -> dict[str, Any]:
    """A card as the torch probe says it."""
    return {
        "index": index,
        "name": name,
        "total_bytes": int(gib * GIB),
        "capability": capability,
        "address": address,
    }


def pairs(count: int, *, access: bool, gbps: float) -> list[dict[str, Any]]:
    """The lines of the peer probe when all is well."""
    return [
        {"from": i, "to": j, "access": access, "right": True, "gbps": gbps}
        for i in range(count)
        for j in range(count)
        if i != j
    ]


def ranks(count: int, gbps: float) -> tuple[Answer, ...]:
    """The answers of an all-reduce that went well."""
    return tuple(
        said(
            f"rank {rank} of the all-reduce",
            {"stage": "started"},
            {"stage": "joined"},
            {"stage": "summed"},
            {"stage": "done", "right": True, "gbps": gbps},
        )
        for rank in range(count)
    )


PACKAGES = {
    "roost": Package("0.1.0", ("torch>=2.9", "transformers>=5.8,<5.20", "peft>=0.18")),
    "torch": Package("2.13.0+cu130"),
    "transformers": Package("5.19.0", ("tokenizers<0.24,>=0.23.1",)),
    "tokenizers": Package("0.23.3"),
    "peft": Package("0.21.2", ("torch>=1.13.0", "transformers")),
}
MEMINFO = "MemTotal:       {total} kB\nMemFree:         1000000 kB\nMemAvailable:   {free} kB\n"


def linux(cpus: int, gib: int, *, virtual: bool = False, nodes: str = "0") -> dict[str, str]:
    """Files that every machine has."""
    kib = gib * 2**20
    return {
        "/proc/cpuinfo": f"processor\t: 0\nflags\t\t: fpu sse2{' hypervisor' * virtual} avx2\n",
        "/proc/meminfo": MEMINFO.format(total=kib, free=kib * 9 // 10),
        "/proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t0-{cpus - 1}\n",
        "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet\n",
        "/sys/devices/system/node/online": f"{nodes}\n",
    }


def _base(cpus: int, gib: int, files: dict[str, str]) -> Facts:
    return Facts(
        files=files,
        cpus=cpus,
        affinity=cpus,
        disks=(Disk(".", "runs", 2000 * GIB, 900 * GIB),),
        shm=Disk("/dev/shm", "shared memory", gib * GIB // 2, gib * GIB // 2),
        packages=PACKAGES,
    )


def laptop() -> Facts:
    """No GPU, a CPU build of torch."""
    missing = {
        name: Answer(who, problem="is not installed", missing=True)
        for name, who in (
            ("smi", "nvidia-smi"),
            ("smi_gpus", "nvidia-smi"),
            ("smi_topology", "nvidia-smi"),
            ("smi_peers", "nvidia-smi"),
            ("lspci", "lspci"),
        )
    }
    build = torch_says(version="2.13.0+cpu", cuda=None, threads=8)
    return replace(_base(8, 32, linux(8, 32)), torch=build, **missing)


def switch_pair() -> Facts:
    """Two RTX A6000 below one PCIe switch of a bare-metal workstation; no NVLink."""
    addresses = ["0000:03:00.0", "0000:04:00.0"]
    above = "/sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0"
    pci = {
        addresses[0]: f"{above}/0000:02:08.0/{addresses[0]}",
        addresses[1]: f"{above}/0000:02:10.0/{addresses[1]}",
    }
    files = linux(32, 256)
    for address in addresses:
        files[f"/sys/bus/pci/devices/{address}/numa_node"] = "0\n"
        files[f"/sys/bus/pci/devices/{address}/local_cpulist"] = "0-31\n"
    cards = [gpu(i, "NVIDIA RTX A6000", 47.41, [8, 6], a) for i, a in enumerate(addresses)]
    return replace(
        _base(32, 256, files),
        pci=pci,
        smi=Answer("nvidia-smi", captured("switch_pair", "nvidia-smi")),
        smi_gpus=Answer("nvidia-smi", captured("switch_pair", "gpus")),
        smi_topology=Answer("nvidia-smi", captured("switch_pair", "topology")),
        smi_peers=Answer("nvidia-smi", captured("switch_pair", "peers")),
        lspci=Answer("lspci", captured("switch_pair", "lspci")),
        torch=torch_says(*cards),
        peers=said("the copies between cards", *pairs(2, access=True, gbps=25.1)),
        all_reduce=ranks(2, 22.0),
    )


def hgx() -> Facts:
    """Four H100 joined by NVLink, two sockets, bare metal, the IOMMU in passthrough."""
    roots = {
        "0000:18:00.0": "pci0000:15/0000:15:01.0",
        "0000:2a:00.0": "pci0000:26/0000:26:01.0",
        "0000:9a:00.0": "pci0000:97/0000:97:01.0",
        "0000:ab:00.0": "pci0000:a7/0000:a7:01.0",
    }
    files = linux(96, 1024, nodes="0-1")
    for index, address in enumerate(roots):
        node = index // 2
        device = f"/sys/bus/pci/devices/{address}"
        files[f"{device}/numa_node"] = f"{node}\n"
        files[f"{device}/local_cpulist"] = f"{node * 48}-{node * 48 + 47}\n"
        files[f"{device}/iommu_group/type"] = "identity\n"
    cards = [gpu(i, "NVIDIA H100 80GB HBM3", 79.18, [9, 0], a) for i, a in enumerate(roots)]
    return replace(
        _base(96, 1024, files),
        pci={a: f"/sys/devices/{root}/{a}" for a, root in roots.items()},
        smi=Answer("nvidia-smi", captured("hgx", "nvidia-smi")),
        smi_gpus=Answer("nvidia-smi", captured("hgx", "gpus")),
        smi_topology=Answer("nvidia-smi", captured("hgx", "topology")),
        smi_peers=Answer("nvidia-smi", captured("hgx", "peers")),
        lspci=Answer("lspci", captured("switch_pair", "lspci")),
        torch=torch_says(*cards, threads=96),
        peers=said("the copies between cards", *pairs(4, access=True, gbps=131.0)),
        all_reduce=ranks(4, 120.0),
    )


def levels(findings: list[Finding]) -> list[Level]:
    """How bad each is."""
    return [finding.level for finding in findings]


def only(findings: list[Finding]) -> Finding:
    """The one finding that there must be."""
    assert len(findings) == 1, [finding.what for finding in findings]
    return findings[0]
