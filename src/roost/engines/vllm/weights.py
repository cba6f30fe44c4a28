"""A policy's weights on their way into an engine, all of them or an adapter, and the proof."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from roost.engines.vllm.port import Port, slot_rank
from roost.errors import EngineError
from roost.model.policy import Policy
from roost.sync.buckets import buckets
from roost.sync.digest import ZEROS, tensor_digest
from roost.sync.held_folder import HeldFolder
from roost.sync.names import NameMap, part_names, split_shard
from roost.sync.proof import check_digests, check_written
from roost.sync.trainer_side import adapter_file, adapter_tensors, base_tensors, infos
from roost.training.parallel import ALONE, Ranks

CPU_PROOF_BYTES = 32 * 2**20
"""Bytes of weights read back after a sync on a CPU, a different share each time. There a packed
layer is read by computing with it, which for all of a model would take as long as a step. The first
sync, and one after a wake, read back everything; on a GPU all do."""


class FullWeights:
    """All weights travel.

    Args:
        policy: Whose weights.
        port: The engine, or one of its shards.
        ranks: Have the others.

    Raises:
        EngineError: their tensors do not match, by name, shape or dtype.
    """

    def __init__(self, policy: Policy, port: Port, ranks: Ranks = ALONE) -> None:
        self.policy = policy
        self.port = port
        self._fused = port.fused()
        held = port.tensors()
        # The shards of an engine hold other tensors, its replicas the same.
        engine = dict(item for part in ranks.gather(held, "the names") for item in part.items())
        self.names = NameMap(infos(base_tensors(policy)), engine, self._fused).only(held)
        self._rotation = cycle(self.names.targets)

    def send(self) -> int:
        """Give the engine the policy's weights, and check that all arrived. Returns bytes sent.

        Raises:
            EngineError: the sync is partial.
        """
        tensors = base_tensors(self.policy)
        received: list[str] = []
        written: set[str] = set()
        self.port.start_update()
        for bucket in buckets((name, tensors[name].detach()) for name in self.names.sources):
            arrived, wrote = self.port.send(bucket)
            received += arrived
            written |= wrote
        self.port.finish_update(str(self.policy.version))
        check_written(self.names, received, written)
        return sum(tensors[name].nbytes for name in self.names.sources)

    def prove(self, limit: int | None) -> tuple[str, int]:
        """Compare what the engine computes with, bit for bit, with what the trainer holds.

        Args:
            limit: Bytes to compare, in turn; None compares all.

        Returns:
            One digest of what was compared, and how many tensors that was.

        Raises:
            EngineError: naming the tensors that differ.
        """
        tensors = base_tensors(self.policy)
        chosen = list(self.names.targets) if limit is None else self._share(limit, tensors)
        expected = {
            name: tensor_digest(self.names.targets[name].expected(tensors)) for name in chosen
        }
        return check_digests(expected, self.port.digests(chosen)), len(expected)

    def close(self) -> None:
        """Nothing to release."""

    def _share(self, limit: int, tensors: Mapping[str, Tensor]) -> list[str]:
        chosen: list[str] = []
        held = 0
        while held < limit and len(chosen) < len(self.names.targets):
            name = next(self._rotation)
            chosen.append(name)
            held += sum(tensors[part].nbytes for part in self.names.targets[name].parts)
        return chosen


class AdapterWeights(FullWeights):
    """Only the adapter travels, into one slot that is replaced; the base is never sent.

    The engine loads the base from the same files as the trainer, and is proven to hold it: all of
    it at the start, a share after each sync, so that neither side can change it unnoticed.
    """

    def __init__(self, policy: Policy, port: Port, ranks: Ranks = ALONE) -> None:
        super().__init__(policy, port, ranks)
        self._held = HeldFolder("adapter")
        self._folder = self._held.path
        adapted: Any = policy.module
        config = adapted.peft_config["default"]
        config.save_pretrained(self._folder)
        self._rank = slot_rank(config.r) or config.r
        self._slots = self._slot_map(port)

    def send(self) -> int:
        """See ``FullWeights``."""
        tensors = {name: tensor.cpu() for name, tensor in adapter_file(self.policy).items()}
        save_file(tensors, self._folder / "adapter_model.safetensors")
        self.port.load_adapter(self._folder, str(self.policy.version))
        return sum(tensor.nbytes for tensor in tensors.values())

    def prove(self, limit: int | None) -> tuple[str, int]:
        """See ``FullWeights``; the adapter is compared whole each time."""
        expected = dict(self._expected())
        held: dict[str, str] = {}
        for slot, (a, b) in self.port.adapter_digests().items():
            held |= {f"{slot}.A": a, f"{slot}.B": b}
        digest = check_digests(expected, held)
        _, base = super().prove(limit)
        return digest, len(expected) + base

    def close(self) -> None:
        """Remove the adapter's file."""
        self._held.close()

    def _slot_map(self, port: Port) -> dict[str, str]:
        """By slot, the module of the trainer that it stands for."""
        found = {}
        for slot in port.adapter_digests():
            layer, part, _ = _slot_parts(slot)
            names = list(part_names(f"{layer}.weight", self._fused))
            found[slot] = names[part].removesuffix(".weight")
        lost = sorted(adapter_tensors(self.policy).keys() - set(found.values()))
        if lost:
            raise EngineError(
                f"the adapter of {lost[0]} has no place in the engine (of {len(lost)} such): set "
                "lora.targets to layers that the engine adapts, or rollout.engine = 'embedded'."
            )
        return found

    def _expected(self) -> Iterator[tuple[str, str]]:
        adapters = adapter_tensors(self.policy)
        for slot, module in self._slots.items():
            if module not in adapters:
                yield f"{slot}.A", ZEROS
                yield f"{slot}.B", ZEROS
                continue
            a, b = self._in_shard(slot, *adapters[module])
            yield f"{slot}.A", tensor_digest(F.pad(a, (0, 0, 0, self._rank - a.shape[0])))
            yield f"{slot}.B", tensor_digest(F.pad(b, (0, self._rank - b.shape[1])))

    def _in_shard(self, slot: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """What a slot holds of an adapter: of a layer that is divided by rows those of B, of one
        that is divided by columns those of A."""
        layer, part, shard = _slot_parts(slot)
        pieces = self.names.targets[f"{layer}.weight{shard}"].info.pieces
        if not pieces:
            return a, b
        piece = pieces[part]
        return (piece.of(a), b) if piece.dim else (a, piece.of(b))


def _slot_parts(slot: str) -> tuple[str, int, str]:
    """Layer, part and shard of a slot's name.

    >>> _slot_parts("layers.0.qkv_proj.2/1")
    ('layers.0.qkv_proj', 2, '/1')
    """
    plain, shard = split_shard(slot)
    layer, _, part = plain.rpartition(".")
    return layer, int(part), shard
