"""Checks of the sync: each fault is made, and must be refused before anything is sampled.

They are for engines with weights of their own. Each begins with an engine in order, moves the
trained weights a little, so that there is something to send, and asks for a proof of everything, as
a run's first sync has.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from roost.engines.vllm import faults
from roost.engines.vllm.engine import VllmEngine
from roost.engines.vllm.faults import Spoil
from roost.engines.vllm.fleet import ServerEngine
from roost.errors import EngineError, SyncError
from roost.gpu_check.results import CheckFailed, Found, NotHere
from roost.self_check.laws import compare
from roost.self_check.trial import Trial
from roost.sync.trainer_side import adapter_tensors, base_tensors

_UNNOTICED = "it was not noticed: the engine would sample from wrong weights"


def dropped_tensor(trial: Trial) -> Found:
    """A tensor, or the adapter of a layer, does not arrive."""
    name = _victim(trial)
    # An engine takes the two halves of an adapter together or not at all.
    halves = [n for n in faults.travelling(trial.policy) if _layer(n) == _layer(name)]
    return _spoilt(trial, faults.dropped(halves))


def swapped_pair(trial: Trial) -> Found:
    """Two tensors of one shape arrive under each other's name."""
    seen: dict[tuple[int, ...], str] = {}
    for name, tensor in faults.travelling(trial.policy).items():
        other = seen.setdefault(tuple(tensor.shape), name)
        if other != name:
            return _spoilt(trial, faults.swapped(other, name))
    raise NotHere("no two of the tensors that are sent have one shape")


def zeroed_tensor(trial: Trial) -> Found:
    """A tensor arrives as zeros."""
    return _spoilt(trial, faults.zeroed(_victim(trial)))


def flipped_bit(trial: Trial) -> Found:
    """The lowest bit of one weight has changed."""
    return _spoilt(trial, faults.flipped(_victim(trial)))


def stale_weights(trial: Trial) -> Found:
    """The engine says that it wrote all, and wrote nothing."""
    return _spoilt(trial, faults.withheld)


def stale_adapter(trial: Trial) -> Found:
    """The adapter of the sync before arrives again."""
    before = {name: t.clone() for name, t in faults.travelling(trial.policy).items()}
    return _spoilt(trial, faults.replaced(before))


def skipped_sync(trial: Trial) -> Found:
    """The weights have moved, and samples are asked for without a sync."""
    engine = trial.synced_engine
    engine.sync()
    faults.move(trial.policy)
    return Found(_refused(trial.draw, SyncError))


def wake_without_sync(trial: Trial) -> Found:
    """A sleeping engine is woken, its sync fails, and samples are asked for all the same."""
    engine = _begin(trial)
    engine.sleep()
    with trial.spoiling(faults.zeroed(_victim(trial))):
        _refused(engine.sync, SyncError)
    return Found(_refused(trial.draw, EngineError))


def base_weight_changed(trial: Trial) -> Found:
    """A bit of the frozen base differs between trainer and engine."""
    engine = _begin(trial)
    weight = _middle(base_tensors(trial.policy))[1]
    faults.flip_a_bit(weight)
    try:
        return _refused_whole(trial, engine)
    finally:
        faults.flip_a_bit(weight)


def adapter_counted_twice(trial: Trial) -> Found:
    """The trainer's base has an adapter in it that is counted on top of it as well."""
    engine = _begin(trial)
    name = next(iter(adapter_tensors(trial.policy)))
    with faults.counted_twice(trial.policy, name):
        return _refused_whole(trial, engine)


def healthy_sync(trial: Trial) -> Found:
    """After all of these, a sync without a fault is proven whole, and what is sampled is what the
    trainer scores."""
    engine = _begin(trial)
    metrics = engine.sync()
    figures = compare(trial, trial.draw())
    return Found(
        f"{metrics['sync/bytes'] / 2**20:,.1f} MiB sent, {metrics['sync/tensors_compared']:.0f} "
        f"tensors proven; samples {figures}"
    )


def _spoilt(trial: Trial, spoil: Spoil) -> Found:
    """A sync on whose way something happens."""
    engine = _begin(trial)
    with trial.spoiling(spoil):
        return _refused_whole(trial, engine)


def _begin(trial: Trial) -> VllmEngine | ServerEngine:
    """An engine in order, weights that it does not have yet, and a proof of all to come."""
    engine = trial.synced_engine
    if engine.outdated:
        engine.doubt()  # it may be left by a check that failed
        engine.sync()
    faults.move(trial.policy)
    engine.doubt()
    return engine


def _refused_whole(trial: Trial, engine: VllmEngine | ServerEngine) -> Found:
    """The sync is refused, and nothing can be sampled then."""
    words = _refused(engine.sync, SyncError)
    _refused(trial.draw, EngineError, otherwise="its sync was refused, and it sampled all the same")
    return Found(words)


def why_not(trial: Trial) -> str | None:
    """Why there is no sync to check; None where there is one."""
    if isinstance(trial.engine, VllmEngine | ServerEngine):
        return None
    return "the embedded engine samples from the trainer's own weights: nothing is sent"


def why_not_full(trial: Trial) -> str | None:
    """Why not all weights are sent."""
    lora = "with LoRA the adapter alone is sent: see stale-adapter"
    return why_not(trial) or (lora if trial.policy.is_adapter else None)


def why_no_adapter(trial: Trial) -> str | None:
    """Why there is no adapter."""
    full = "full training has no adapter: every weight is sent"
    return why_not(trial) or (None if trial.policy.is_adapter else full)


def why_awake(trial: Trial) -> str | None:
    """Why the engine never sleeps."""
    awake = "the engine stays awake in this run (rollout.sleep)"
    return why_not(trial) or (None if trial.engine.sleeps else awake)


def _refused(
    call: Callable[[], object], kind: type[EngineError], otherwise: str = _UNNOTICED
) -> str:
    """The words with which it is refused.

    Raises:
        CheckFailed: it is not.
    """
    try:
        call()
    except kind as error:
        return f"refused: {error}"
    raise CheckFailed(otherwise)


def _victim(trial: Trial) -> str:
    return _middle(faults.travelling(trial.policy))[0]


def _middle(tensors: dict[str, Tensor]) -> tuple[str, Tensor]:
    """A matrix from the middle of the model."""
    matrices = [(name, tensor) for name, tensor in tensors.items() if tensor.dim() == 2]
    return matrices[len(matrices) // 2]


def _layer(name: str) -> str:
    return name.partition(".lora_")[0]
