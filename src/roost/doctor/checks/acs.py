"""Whether bridges send copies between neighbouring cards the long way round."""

from __future__ import annotations

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level
from roost.doctor.readings import bus, machine, nvidia

NAME = "acs"


def check(facts: Facts) -> list[Finding]:
    """Access Control Services of the switches that cards share.

    Root ports are left out: between two of them all goes through the root complex anyway.
    """
    if len(facts.pci) < 2:
        return [Finding(NAME, Level.OK, "no two cards that could share a switch")]
    if machine.is_virtual(facts):
        return [Finding(NAME, Level.OK, "a virtual machine: it needs ACS, and the host sets it")]
    pairs = bus.sharing_a_switch(facts)
    if not pairs:
        return [Finding(NAME, Level.OK, "no two cards share a PCIe switch")]
    if facts.lspci.problem:
        return [_unread(f"lspci {facts.lspci.problem}", _install(facts))]
    bridges = bus.bridges(facts.lspci.text)
    above = {bridge for pair in pairs for card in pair for bridge in bus.ancestors(facts, card)}
    if not above & bridges.keys() and "<access denied>" in facts.lspci.text:
        return [_unread("lspci shows the bridges' settings to root alone", "sudo lspci -vvv")]
    redirecting = sorted(
        bridge.address
        for bridge in bridges.values()
        if bridge.address in above and bridge.redirects and bridge.port != "Root Port"
    )
    if not redirecting:
        return [Finding(NAME, Level.OK, "no switch above two cards redirects their copies")]
    return [_redirecting(facts, redirecting)]


def _install(facts: Facts) -> str:
    return "Install it (apt install pciutils)" if facts.lspci.missing else "sudo lspci -vvv"


def _unread(why: str, how: str) -> Finding:
    return Finding(
        NAME,
        Level.WARNING,
        f"not examined: {why}",
        "Cards share a switch; where it redirects their copies, these are slow or hang. "
        "peer-to-peer above says how fast they are.",
        f"{how}, and look for ReqRedir+ in the ACSCtl lines of the switch; or run roost doctor as "
        "root.",
    )


def _redirecting(facts: Facts, addresses: list[str]) -> Finding:
    nvlink = nvidia.all_nvlink(facts)
    clear = "; ".join(f"setpci -s {address} ECAP_ACS+0x6.w=0000" for address in addresses[:2])
    means = (
        "Cards speak over NVLink, but network cards below these switches reach GPU memory slowly."
        if nvlink
        else "Copies between neighbours go up to the CPU and back: slow, and on some boards they "
        "hang NCCL."
    )
    return Finding(
        NAME,
        Level.WARNING if nvlink else Level.FAULT,
        f"PCIe switches above the cards redirect copies: ACS is on at {', '.join(addresses)}",
        means,
        "Switch ACS (or VT-d, AMD-Vi) off in the BIOS; or, until the next boot and as root, for "
        f"each of them: {clear}",
        {"bridges": addresses},
    )
