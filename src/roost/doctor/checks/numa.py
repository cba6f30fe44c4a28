"""Whether this process may run beside its cards."""

from __future__ import annotations

import re

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings.machine import cpu_list, is_virtual

NAME = "numa"


def check(facts: Facts) -> list[Finding]:
    """The node of each card, and the CPUs that are open to this process."""
    nodes = cpu_list(facts.files.get("/sys/devices/system/node/online", "0"))
    if len(nodes) < 2 or not facts.pci:
        cards = "no card" if not facts.pci else "all cards are near all CPUs"
        plural = "s" if len(nodes) > 1 else ""
        return [Finding(NAME, Level.OK, f"{len(nodes)} NUMA node{plural}, {cards}")]
    homes = {card: _node(facts, card) for card in facts.pci}
    found = [*_unknown(facts, homes), *_far(facts)]
    return found or [Finding(NAME, Level.OK, _places(homes, len(nodes)), data={"nodes": homes})]


def _node(facts: Facts, card: str) -> int:
    return int(facts.files.get(f"/sys/bus/pci/devices/{card}/numa_node", "-1"))


def _places(homes: dict[str, int], nodes: int) -> str:
    counts = {node: list(homes.values()).count(node) for node in sorted(set(homes.values()))}
    cards = ", ".join(f"{count} on node {node}" for node, count in counts.items())
    return f"{nodes} NUMA nodes; cards: {cards}"


def _unknown(facts: Facts, homes: dict[str, int]) -> list[Finding]:
    unknown = [card for card, node in homes.items() if node < 0]
    if not unknown:
        return []
    do = (
        "Have the host pass its NUMA layout to the virtual machine."
        if is_virtual(facts)
        else "Update the BIOS, or switch NUMA on in it (on AMD: NPS1 or higher)."
    )
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"the machine does not say near which CPUs {len(unknown)} cards are",
            "Processes cannot be placed beside their cards, so copies to and from host memory may "
            "cross the sockets' link at half the rate.",
            do,
        )
    ]


def _far(facts: Facts) -> list[Finding]:
    match = re.search(
        r"^Cpus_allowed_list:\s*(\S+)", facts.files.get("/proc/self/status", ""), re.M
    )
    if not match:
        return []
    allowed = cpu_list(match.group(1))
    far = []
    for card in facts.pci:
        near = cpu_list(facts.files.get(f"/sys/bus/pci/devices/{card}/local_cpulist", ""))
        if near and not near & allowed:
            far.append(card)
    if not far:
        return []
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"this process may only use CPUs {match.group(1)}, none of which is near "
            f"{len(far)} of {len(facts.pci)} cards",
            "Work for those cards crosses the sockets' link: slower loading, sleep, wake and "
            "copies between cards.",
            "Loosen the CPU set (taskset, --cpuset-cpus, the batch system's binding), or use the "
            "cards of this socket alone with CUDA_VISIBLE_DEVICES.",
            {"far": far},
        )
    ]
