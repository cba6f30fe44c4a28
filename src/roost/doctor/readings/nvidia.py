"""What nvidia-smi says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roost.doctor.facts import Answer, Facts

QUERY = (
    "index",
    "name",
    "pci.bus_id",
    "memory.total",
    "memory.used",
    "driver_version",
    "mig.mode.current",
    "compute_mode",
    "ecc.errors.uncorrected.volatile.total",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
)
"""Fields of ``--query-gpu``. nvidia-smi refuses a query with one unknown field, so only fields are
here that drivers have had since 450, the oldest that CUDA 11 runs on."""

PCIE_GBPS_A_LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""One direction of one lane by generation, 1e9 bytes a second: the line rate less its encoding."""


@dataclass(frozen=True, slots=True)
class SmiGpu:
    """One row of ``nvidia-smi --query-gpu``."""

    index: int
    name: str
    address: str
    """On the PCI bus, as Linux writes it: 0000:18:00.0."""
    total_mib: int | None
    used_mib: int | None
    driver: str
    mig: bool
    compute_mode: str
    uncorrected_errors: int
    """Since the driver was loaded; 0 where the card does not count."""
    pcie_gen_max: int | None
    pcie_width: int | None
    pcie_width_max: int | None

    @property
    def pcie_gbps(self) -> float | None:
        """One direction of its link, nominal; at its best generation, as idle cards slow down."""
        lane = PCIE_GBPS_A_LANE.get(self.pcie_gen_max or 0)
        return lane * self.pcie_width if lane and self.pcie_width else None


def gpus(facts: Facts) -> list[SmiGpu]:
    """The cards that the driver has, visible to this process or not."""
    rows = [line.split(", ") for line in facts.smi_gpus.text.splitlines()]
    return [_gpu(row) for row in rows if len(row) == len(QUERY) and row[0].strip().isdigit()]


def _gpu(row: list[str]) -> SmiGpu:
    index, name, address, total, used, driver, mig, mode, errors, gen, width, width_max = (
        cell.strip() for cell in row
    )
    return SmiGpu(
        index=int(index),
        name=name,
        address=pci_address(address),
        total_mib=_number(total),
        used_mib=_number(used),
        driver=driver,
        mig=mig == "Enabled",
        compute_mode=mode,
        uncorrected_errors=_number(errors) or 0,
        pcie_gen_max=_number(gen),
        pcie_width=_number(width),
        pcie_width_max=_number(width_max),
    )


def _number(cell: str) -> int | None:
    """``81559 MiB`` and ``16``; None for ``[N/A]`` and the like."""
    match = re.match(r"\d+", cell)
    return int(match.group()) if match else None


def pci_address(text: str) -> str:
    """An address as Linux writes it.

    >>> pci_address("00000000:3B:00.0")
    '0000:3b:00.0'
    """
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def driver_cuda(smi: Answer) -> tuple[int, int] | None:
    """The newest CUDA that the driver runs, from the header of ``nvidia-smi``."""
    match = re.search(r"CUDA (?:UMD )?Version: *(\d+)\.(\d+)", smi.text)
    return (int(match.group(1)), int(match.group(2))) if match else None


def matrix(answer: Answer) -> dict[tuple[int, int], str]:
    """The table of ``nvidia-smi topo``: what joins (or bars) each ordered pair of GPUs."""
    cells: dict[tuple[int, int], str] = {}
    columns: list[int] = []
    for line in answer.text.splitlines():
        words = re.sub(r"\x1b\[[0-9;]*m", "", line).split()
        if not words or not re.fullmatch(r"GPU\d+", words[0]):
            continue
        if not columns:
            columns = [int(w[3:]) for w in words if re.fullmatch(r"GPU\d+", w)]
            continue
        row = int(words[0][3:])
        cells.update(
            {(row, column): word for column, word in zip(columns, words[1:], strict=False)}
        )
    return {pair: word for pair, word in cells.items() if pair[0] != pair[1]}


def nvlinks(word: str) -> int:
    """How many NVLinks a cell of the table stands for: 18 for ``NV18``, 0 for ``PIX``."""
    match = re.fullmatch(r"NV(\d+)", word)
    return int(match.group(1)) if match else 0


def all_nvlink(facts: Facts) -> bool:
    """Whether NVLink joins every pair, so that copies between cards avoid PCIe."""
    cells = matrix(facts.smi_topology)
    return bool(cells) and all(nvlinks(word) for word in cells.values())
