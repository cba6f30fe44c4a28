"""What torch says of itself and of the cards that it sees."""

from __future__ import annotations

from dataclasses import dataclass

from roost.doctor.facts import Facts


@dataclass(frozen=True, slots=True)
class TorchGpu:
    """A card that this process may use."""

    index: int
    name: str
    total_bytes: int
    """What a process can have of it: less than is sold."""
    capability: tuple[int, int]
    address: str
    """On the PCI bus; empty where torch does not say."""


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """The installed torch."""

    version: str
    cuda: tuple[int, int] | None
    """The CUDA that it was built for; None for a CPU or ROCm build."""
    hip: str | None
    archs: tuple[str, ...]
    """Kernels that it ships: ``sm_90``, ``compute_120``."""
    threads: int
    error: str
    """Why it sees no GPU; empty where it sees some or was built for none."""
    gpus: tuple[TorchGpu, ...]


def build(facts: Facts) -> TorchBuild | None:
    """None where torch did not answer."""
    said = facts.torch.last()
    if "version" not in said:
        return None
    cuda = said["cuda"]
    return TorchBuild(
        version=said["version"],
        cuda=_pair(cuda) if cuda else None,
        hip=said["hip"],
        archs=tuple(said["archs"]),
        threads=said["threads"],
        error=said["error"],
        gpus=tuple(
            TorchGpu(
                index=gpu["index"],
                name=gpu["name"],
                total_bytes=gpu["total_bytes"],
                capability=(gpu["capability"][0], gpu["capability"][1]),
                address=gpu["address"],
            )
            for gpu in said["gpus"]
        ),
    )


def visible(facts: Facts) -> tuple[TorchGpu, ...]:
    """The cards that this process may use."""
    found = build(facts)
    return found.gpus if found else ()


def _pair(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
