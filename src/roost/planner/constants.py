"""Constants of speed, set by published measurements, with the spread of each.

The measurements are ``benchmarks/data/ground_truth.json``. ``benchmarks/plan_fit.py`` fits the
constants of decoding again and cross-validates them; ``benchmarks/plan_accuracy.py`` scores all of
them. A spread is the standard deviation of log(measured / predicted): 0.1 is about ten per cent.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """Of one machine or, as here, of published runs."""

    bandwidth_efficiency: float = 0.77
    """Share of a card's memory bandwidth that decoding reaches."""
    layer_launch_s: float = 74e-6
    """Of one decode step, for each layer: launches and small kernels."""
    eager_layer_s: float = 1.7e-3
    """The same without CUDA graphs and with an adapter in the engine (verl logs: 1.3 to 2.6 ms)."""
    pcie_allreduce_s: float = 68e-6
    """Of one small all-reduce over PCIe; a layer has two."""
    pcie_allreduce_share: float = 0.29
    """Share of PCIe's nominal rate that an all-reduce's payload reaches."""
    nvlink_allreduce_s: float = 25e-6
    """Of one small all-reduce over NVLink: NCCL's small messages take 24 to 28 us on eight cards
    (entry rtx6k-nccl)."""
    network_hop_s: float = 280e-6
    """Of one hop of an all-reduce's ring between nodes over TCP."""
    rdma_hop_s: float = 10e-6
    """The same over InfiniBand or RoCE (aiconfigurator's prior; no entry measures it)."""
    sequence_s: float = 63e-6
    """Of one decode step, for each sequence: sampler, scheduler, detokeniser."""
    prefill_efficiency: float = 0.5
    """Share of peak arithmetic that prefill reaches."""
    full_mfu: float = 0.38
    """Share of peak arithmetic of full-parameter training: torchtitan says 0.33 to 0.39. Not
    fitted."""
    adapter_mfu: float = 0.29
    """The same where an adapter trains: smaller products, nothing to overlap."""
    forward_mfu: float = 0.24
    """The same of a forward alone: verl logs say 0.10 to 0.26. Not fitted."""
    train_overhead_s: float = 4.9
    """Of a training phase besides arithmetic and links: rewards, batches, states that are moved."""
    forward_overhead_s: float = 0.85
    """Of one pass for log-probabilities besides arithmetic."""
    pcie_efficiency: float = 0.85
    """Share of PCIe's nominal rate: 53 to 56.6 of 63 GB/s was measured."""
    nvlink_efficiency: float = 0.8
    """Share of NVLink's nominal rate."""
    sync_overhead_s: float = 0.15
    """Of one weight sync besides the bytes."""
    sleep_s: float = 1.5
    """Fall asleep and wake, besides the bytes: 1.1 to 4.3 s asleep, 0.04 to 2.6 s awake in logs."""
    host_copy_gbps: float = 20.0
    """To and from host memory, 1e9 bytes a second."""
    generate_spread: float = 0.12
    train_spread: float = 0.26
    logprob_spread: float = 0.1
    sync_spread: float = 0.5
    sleep_spread: float = 0.5
    source: str = "fitted on published measurements (docs/plan-accuracy.md)"


PUBLISHED = Constants()
