"""Whether NCCL joins all cards: an all-reduce that was tried."""

from __future__ import annotations

from collections.abc import Sequence

from roost.doctor.facts import Answer, Facts
from roost.doctor.findings import Finding, Level

NAME = "nccl"
_STAGES = {
    None: "before it had loaded torch",
    "started": "while joining the others",
    "joined": "in the first sum",
    "summed": "in the timed sums",
}
_LIMITING = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")


def check(facts: Facts) -> list[Finding]:
    """Who answered, whether the sum was right, how fast it was."""
    ranks = facts.all_reduce
    if not ranks:
        return [Finding(NAME, Level.OK, "no GPU to join")]
    return [_outcome(facts, ranks), *_limited(facts, ranks)]


def _outcome(facts: Facts, ranks: Sequence[Answer]) -> Finding:
    failed = [rank for rank in ranks if rank.problem and not rank.late]
    late = [rank for rank in ranks if rank.late]
    if failed:
        return _failed(facts, failed, len(ranks))
    if late:
        return _hung(late, len(ranks))
    said = [rank.last() for rank in ranks]
    wrong = [i for i, line in enumerate(said) if not line["right"]]
    if wrong:
        return Finding(
            NAME,
            Level.FAULT,
            f"the all-reduce gave a wrong sum on rank {', '.join(map(str, wrong))}",
            "Gradients of several cards would be added up wrongly, with no error.",
            "See peer-to-peer, iommu and acs; until it is mended, run with NCCL_P2P_DISABLE=1.",
        )
    slowest = min(line["gbps"] for line in said)
    rate = f", {slowest:.1f} GB/s a link" if len(ranks) > 1 else ""
    what = f"an all-reduce over {len(ranks)} cards gives the right sum{rate}"
    if len(ranks) == 1:
        what = "NCCL starts on the one card"
    return Finding(NAME, Level.OK, what, data={"gbps": slowest, "ranks": len(ranks)})


def _failed(facts: Facts, failed: Sequence[Answer], world: int) -> Finding:
    first = failed[0]
    out_of_shm = "shared memory" in first.problem.lower() or "/dev/shm" in first.problem
    do = (
        "Enlarge /dev/shm: see shared-memory."
        if out_of_shm
        else "Run with NCCL_DEBUG=INFO for NCCL's own account; see peer-to-peer, iommu and "
        "shared-memory."
    )
    return Finding(
        NAME,
        Level.FAULT,
        f"{first.who} {first.problem}" + _others(len(failed) - 1, world),
        "Training on several cards fails at its start.",
        do,
        {"failed": [rank.who for rank in failed], "nccl_env": _nccl_env(facts)},
    )


def _hung(late: Sequence[Answer], world: int) -> Finding:
    who = ", ".join(f"{rank.who} ({_STAGES[rank.last().get('stage')]})" for rank in late[:4])
    return Finding(
        NAME,
        Level.FAULT,
        f"{len(late)} of {world} ranks did not answer: {who}",
        "Training on several cards hangs with the cards at full load and no message.",
        "See iommu and acs first. If NCCL_P2P_DISABLE=1 roost doctor passes, copies between "
        "cards are at fault; if only NCCL_SHM_DISABLE=1 does, /dev/shm is.",
        {"late": [rank.who for rank in late]},
    )


def _others(count: int, world: int) -> str:
    return f"; so did {count} more of {world}" if count > 0 else ""


def _limited(facts: Facts, ranks: Sequence[Answer]) -> list[Finding]:
    names = [name for name in _LIMITING if facts.env.get(name, "0") not in ("", "0")]
    if not names or len(ranks) < 2:
        return []
    return [
        Finding(
            NAME,
            Level.WARNING,
            f"{' and '.join(f'{name}={facts.env[name]}' for name in names)} is set",
            "It keeps NCCL from its fast ways between cards; often left over from a fault since "
            "mended.",
            f"unset {' '.join(names)}, and run roost doctor again.",
        )
    ]


def _nccl_env(facts: Facts) -> dict[str, str]:
    return {name: value for name, value in facts.env.items() if name.startswith("NCCL_")}
