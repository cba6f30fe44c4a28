"""Whether the driver works and fits the installed torch."""

from __future__ import annotations

import re
from collections.abc import Callable

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings import nvidia
from roost.doctor.readings.torch_build import TorchBuild, TorchGpu, build

NAME = "driver"
_INSTALL = "https://pytorch.org/get-started/locally/"


def check(facts: Facts) -> list[Finding]:
    """Driver, its CUDA against torch's, torch's kernels against the cards."""
    torch = build(facts)
    if torch is None:
        return [_torch_silent(facts)]
    if facts.smi.missing and not facts.pci and not torch.gpus:
        return [
            Finding(NAME, Level.OK, f"no NVIDIA driver, and none needed; torch {torch.version}")
        ]
    steps: tuple[Callable[[Facts, TorchBuild], list[Finding]], ...] = (
        _driver_works,
        _torch_for_gpus,
        _cuda_fits,
        _torch_sees,
        _kernels,
    )
    # Each fault makes the later ones follow, so the first is the one to report.
    for step in steps:
        found = step(facts, torch)
        if found:
            return found
    return [_well(facts, torch)]


def _torch_silent(facts: Facts) -> Finding:
    return Finding(
        NAME,
        Level.FAULT,
        f"{facts.torch.who} {facts.torch.problem or 'said nothing'}",
        "Nothing of Roost that computes can run.",
        "Import torch by hand to see all of the error: python -c 'import torch'. Where it hangs, "
        "the driver does: reboot.",
    )


def _well(facts: Facts, torch: TorchBuild) -> Finding:
    cards = nvidia.gpus(facts)
    driver = cards[0].driver if cards else "without nvidia-smi"
    runtime = f"CUDA {_dots(torch.cuda)}" if torch.cuda else f"ROCm {torch.hip}"
    return Finding(
        NAME,
        Level.OK,
        f"driver {driver}, torch {torch.version} for {runtime}",
        data={"driver": driver, "torch": torch.version, "torch_cuda": torch.cuda},
    )


def _driver_works(facts: Facts, torch: TorchBuild) -> list[Finding]:
    output = f"{facts.smi.text}\n{facts.smi.problem}"
    if "Driver/library version mismatch" in output:
        loaded = re.search(r"Kernel Module(?: for \S+)? +(\d[\d.]*)", _version_file(facts))
        library = re.search(r"NVML library version: ([\d.]+)", output)
        return [
            _fault(
                f"the loaded driver ({loaded.group(1) if loaded else 'unknown'}) is not the "
                f"installed one ({library.group(1) if library else 'unknown'})",
                "The driver was updated while it ran; no program can start on a GPU until it is "
                "loaded anew.",
                "Reboot.",
            )
        ]
    if facts.smi.late:
        return [
            _fault(
                f"nvidia-smi {facts.smi.problem}",
                "The driver hangs, often after a card has failed (an Xid error in dmesg). Runs "
                "would hang too.",
                "Look for Xid and 'fallen off the bus' in dmesg, then reboot.",
            )
        ]
    if facts.pci and facts.smi.problem and not torch.gpus:
        return [
            _fault(
                f"{len(facts.pci)} NVIDIA devices, but nvidia-smi {facts.smi.problem}",
                "Without a driver no program can use the cards.",
                "Install the NVIDIA driver, or load it (modprobe nvidia). In a container, start "
                "it with --gpus all and the NVIDIA container toolkit.",
            )
        ]
    return []


def _version_file(facts: Facts) -> str:
    return facts.files.get("/proc/driver/nvidia/version", "")


def _torch_for_gpus(facts: Facts, torch: TorchBuild) -> list[Finding]:
    if torch.cuda or torch.hip or not nvidia.gpus(facts):
        return []
    return [
        _fault(
            f"torch {torch.version} is a CPU build, on a machine with GPUs",
            "Runs would use the CPU and be many times slower.",
            f"Install torch for CUDA {_driver_says(facts)} or older: {_INSTALL}",
        )
    ]


def _cuda_fits(facts: Facts, torch: TorchBuild) -> list[Finding]:
    driver = nvidia.driver_cuda(facts.smi)
    if torch.cuda is None or driver is None or torch.cuda <= driver:
        return []
    if torch.cuda[0] > driver[0] and not torch.gpus:
        return [
            _fault(
                f"the driver runs CUDA up to {_dots(driver)}, torch {torch.version} needs "
                f"{torch.cuda[0]}.x",
                "torch cannot start on these cards.",
                f"Update the driver, or install torch for CUDA {driver[0]}.x: {_INSTALL}",
            )
        ]
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"torch {torch.version} is for CUDA {_dots(torch.cuda)}, the driver for "
            f"{_dots(driver)}",
            "torch itself runs, but kernels compiled while running (Triton, PTX) may be refused.",
            "Update the driver when you can.",
        )
    ]


def _torch_sees(facts: Facts, torch: TorchBuild) -> list[Finding]:
    hidden = facts.env.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles")
    if torch.gpus or hidden or not nvidia.gpus(facts):
        return []
    return [
        _fault(
            f"torch sees no GPU: {torch.error or 'it does not say why'}",
            "Runs would use the CPU and be many times slower.",
            "Compare the driver with torch's CUDA above; with NVSwitch, see that "
            "nvidia-fabricmanager runs in the driver's own version; else reboot.",
        )
    ]


def _kernels(facts: Facts, torch: TorchBuild) -> list[Finding]:
    del facts
    bad = [card for card in torch.gpus if torch.cuda and not _covered(card, torch.archs)]
    if not bad:
        return []
    major, minor = bad[0].capability
    return [
        _fault(
            f"torch {torch.version} has no kernels for {bad[0].name} (sm_{major}{minor})",
            "The first operation on the card ends with 'no kernel image is available'.",
            f"Install a torch whose build names sm_{major}{minor}; this one has "
            f"{', '.join(torch.archs) or 'none'}: {_INSTALL}",
        )
    ]


def _covered(card: TorchGpu, archs: tuple[str, ...]) -> bool:
    """A binary runs on its major version from its minor on; PTX is compiled for any later card."""
    for arch in archs:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", arch)
        if not match:
            continue
        version = (int(match.group(2)), int(match.group(3)))
        same_major = version[0] == card.capability[0]
        if version <= card.capability and (same_major or match.group(1) == "compute"):
            return True
    return False


def _fault(what: str, means: str, do: str) -> Finding:
    return Finding(NAME, Level.FAULT, what, means, do)


def _dots(version: tuple[int, int] | None) -> str:
    return ".".join(map(str, version)) if version else "unknown"


def _driver_says(facts: Facts) -> str:
    return _dots(nvidia.driver_cuda(facts.smi))
