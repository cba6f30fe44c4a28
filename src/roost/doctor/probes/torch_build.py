"""``python -m roost.doctor.probes.torch_build``: what torch is and which cards it sees."""

from __future__ import annotations

from typing import Any

from roost.doctor.probes.saying import say


def main() -> None:
    """Say it all in one line."""
    import torch

    gpus, error = _gpus()
    say(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        archs=torch.cuda.get_arch_list(),
        threads=torch.get_num_threads(),
        error=error,
        gpus=gpus,
    )


def _gpus() -> tuple[list[dict[str, Any]], str]:
    """The cards, or why there are none."""
    import torch

    if not torch.cuda.is_available():
        return [], _reason()
    try:
        return [_gpu(index) for index in range(torch.cuda.device_count())], ""
    except RuntimeError as error:
        return [], str(error).strip().splitlines()[0]


def _reason() -> str:
    import torch

    if not torch.version.cuda and not torch.version.hip:
        return ""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return ""


def _gpu(index: int) -> dict[str, Any]:
    import torch

    card = torch.cuda.get_device_properties(index)
    return {
        "index": index,
        "name": card.name,
        "total_bytes": card.total_memory,
        "capability": [card.major, card.minor],
        "address": _address(card),
    }


def _address(card: Any) -> str:
    """As Linux writes it; empty where this torch does not tell."""
    if not hasattr(card, "pci_bus_id"):
        return ""
    return f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"


if __name__ == "__main__":
    main()
