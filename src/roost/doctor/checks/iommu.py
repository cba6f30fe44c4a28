"""Whether the IOMMU translates what cards send to each other."""

from __future__ import annotations

import re

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings import bus, machine, nvidia

NAME = "iommu"
PASSTHROUGH = ("iommu=pt", "iommu.passthrough=1")
OFF = ("iommu=off", "intel_iommu=off", "amd_iommu=off")


def check(facts: Facts) -> list[Finding]:
    """Its mode for each card; a fault where two cards depend on PCIe copies."""
    if not facts.pci:
        return [Finding(NAME, Level.OK, "no card that it could concern")]
    if machine.is_virtual(facts):
        return [Finding(NAME, Level.OK, "a virtual machine: the host sets the IOMMU")]
    translated = [card for card in facts.pci if _translates(facts, card)]
    if not translated:
        return [Finding(NAME, Level.OK, _mode(facts), data={"translated": []})]
    what = f"the IOMMU translates the addresses of {len(translated)} of {len(facts.pci)} cards"
    data = {"translated": translated}
    if len(facts.pci) < 2:
        return [Finding(NAME, Level.OK, f"{what}; one card copies to no other", data=data)]
    return [_translating(facts, what, translated)]


def _translating(facts: Facts, what: str, translated: list[str]) -> Finding:
    nvlink = nvidia.all_nvlink(facts)
    means = (
        "Cards speak over NVLink, which it leaves alone, but network cards that write into GPU "
        "memory are slowed."
        if nvlink
        else "On bare metal CUDA does not support copies between cards over PCIe with it: they "
        "hang, arrive wrong, or crawl."
    )
    return Finding(
        NAME,
        Level.WARNING if nvlink else Level.FAULT,
        what,
        means,
        "Add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, run update-grub and reboot; or "
        "switch VT-d (Intel) or IOMMU (AMD) off in the BIOS where no virtual machine needs it.",
        {"translated": translated},
    )


def _translates(facts: Facts, card: str) -> bool:
    kind = bus.group_type(facts, card)
    if kind is not None:
        return kind.startswith("DMA")
    # Older kernels do not tell the type of a group, only that an IOMMU is on.
    command_line = facts.files.get("/proc/cmdline", "").split()
    on = f"/sys/bus/pci/devices/{card}/iommu_group" in facts.folders
    return on and not any(word in PASSTHROUGH + OFF for word in command_line)


def _mode(facts: Facts) -> str:
    kinds = {bus.group_type(facts, card) for card in facts.pci}
    if "identity" in kinds:
        return "the IOMMU is in passthrough mode"
    setting = re.search(r"\S*iommu\S*=\S+", facts.files.get("/proc/cmdline", ""))
    return f"the IOMMU is off or passes cards through{f' ({setting.group()})' if setting else ''}"
