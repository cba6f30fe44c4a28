"""What the trainer takes of each of its cards."""

from __future__ import annotations

from dataclasses import dataclass

from roost.planner import activations
from roost.planner.book import Book
from roost.planner.engine_memory import weight_bytes
from roost.planner.request import BYTES, Layout, Request
from roost.planner.terms import Term

ADAM_STATES = {"adamw": 4 + 4 + 4, "adamw_8bit": 4 + 1 + 1}
"""Master copy and two moments, bytes a trained parameter."""
CONTEXT_BYTES = 500_000_000
"""CUDA context and library workspaces of a process."""
NCCL_BYTES = {1: 0, 2: 358_612_992, 4: 411_041_792}
"""By cards in the group; more take as much as four. From aiconfigurator's system files
(github.com/ai-dynamo/aiconfigurator)."""
FRAGMENTATION = 0.15
"""Of what comes and goes within a step: reserved over allocated in published logs is 1.15 to 1.5,
the smaller the fuller the card."""
DEFAULT_MICRO_BATCH_TOKENS = 8192
FSDP_UNITS = 2
"""Layers gathered at once: the current one and the next."""


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Totals, and the terms of one card."""

    states: int
    """Over all shards of one copy."""
    states_per_gpu: int
    reference: int
    adapter_parameters: int
    trained: int
    activations: int
    micro_batch_tokens: int
    shards: int
    resident: tuple[Term, ...]
    """Held through the whole step."""
    working: tuple[Term, ...]
    """Held while training."""


def shards_of(request: Request, layout: Layout) -> int:
    """Cards that one copy of the states is divided over."""
    if layout.strategy == "ddp":
        return 1
    if layout.strategy == "hybrid":
        return min(layout.trainer_gpus, request.hardware.gpus_per_node)
    return layout.trainer_gpus


def trainer_memory(request: Request, layout: Layout, book: Book, budget: int) -> TrainerMemory:
    """Plan the trainer.

    Args:
        budget: Bytes of a card that training may take; bounds the micro-batch that is chosen.
    """
    shards = shards_of(request, layout)
    states = _states(request, layout, shards, book)
    resident = _resident(request, layout, states, shards)
    fixed = sum(term.bytes for term in resident)
    gathered = tuple(_gathered(request, shards))
    room = budget - fixed - int((1 + FRAGMENTATION) * sum(term.bytes for term in gathered))
    tokens = _micro_batch(request, layout, room)
    work = _work(request, tokens, book)
    working = (*work, *gathered)
    if not request.listed:
        loose = int(FRAGMENTATION * sum(term.bytes for term in working))
        working += (
            Term("fragmentation", loose, f"{FRAGMENTATION} x what comes and goes", {}, "logs"),
        )
    return TrainerMemory(
        states=states.total,
        states_per_gpu=states.per_gpu,
        reference=states.reference,
        adapter_parameters=states.adapter_parameters,
        trained=states.trained,
        activations=work[0].bytes,
        micro_batch_tokens=tokens,
        shards=shards,
        resident=resident,
        working=working,
    )


@dataclass(frozen=True, slots=True)
class _States:
    """Weights, gradients and optimizer of one copy, in bytes; parameters as counts."""

    total: int
    per_gpu: int
    reference: int
    adapter_parameters: int
    trained: int


def _states(request: Request, layout: Layout, shards: int, book: Book) -> _States:
    shape, training = request.model.shape, request.training
    full = training.method == "full"
    adapter = 0 if full else shape.adapter_parameters(training.lora_rank, training.lora_targets)
    book.whole(
        "trainer.adapter_parameters",
        adapter,
        "parameters",
        "rank x sum(inputs + outputs) of the adapted linear layers",
        "LoRA (arXiv:2106.09685)",
        rank=training.lora_rank,
        targets=str(training.lora_targets),
    )
    base = _base_bytes(request)
    trained = shape.parameters if full else adapter
    width = int(BYTES[training.dtype])
    each = _state_bytes_each(request)
    states = book.bytes(
        "trainer.state_bytes",
        (0 if full else base) + each * trained,
        "state bytes x parameters" if full else "frozen base + state bytes x adapter_parameters",
        "ZeRO (arXiv:1910.02054): 16-bit weight and gradient, float32 master and two moments",
        bytes_per_trained_parameter=each,
        trained_parameters=trained,
        base_bytes=0 if full else base,
    )
    per_gpu = book.bytes(
        "trainer.state_bytes_per_gpu",
        -(-states // shards),
        "state_bytes / shards",
        f"{layout.strategy}: states are divided over {shards} cards",
        state_bytes=states,
        shards=shards,
    )
    reference = book.bytes(
        "trainer.reference_bytes",
        width * shape.parameters if full and training.beta > 0 else 0,
        "bytes per parameter x parameters; 0 without beta, and with an adapter (switched off)",
        "GRPO (arXiv:2402.03300): KL against a frozen copy",
        beta=training.beta,
        parameters=shape.parameters,
    )
    return _States(states, per_gpu, reference, adapter, trained)


def _base_bytes(request: Request) -> int:
    shape, training = request.model.shape, request.training
    if training.method == "qlora":
        return weight_bytes(shape, "nf4")
    return int(BYTES[training.dtype]) * shape.parameters


def _state_bytes_each(request: Request) -> int:
    """Of one trained parameter: weight, gradient, master, moments."""
    training = request.training
    if training.dtype == "float32":
        return 4 + 4 + ADAM_STATES[training.optimizer] - 4  # the weight is its own master
    return 2 + 2 + ADAM_STATES[training.optimizer]


def _resident(request: Request, layout: Layout, states: _States, shards: int) -> tuple[Term, ...]:
    terms = [Term("trainer states", states.per_gpu, f"{states.total:,} B / {shards} shards")]
    if states.reference:
        share = -(-states.reference // shards)
        terms.append(Term("reference", share, f"{states.reference:,} B / {shards} shards"))
    if not request.listed:
        terms.append(Term("CUDA context", CONTEXT_BYTES, "0.5 GB", {}, "seen 0.3 to 0.5 GB"))
        group = max(size for size in NCCL_BYTES if size <= layout.trainer_gpus)
        if NCCL_BYTES[group]:
            terms.append(
                Term(
                    "NCCL", NCCL_BYTES[group], f"{layout.trainer_gpus} cards", {}, "aiconfigurator"
                )
            )
    return tuple(terms)


def _gathered(request: Request, shards: int) -> list[Term]:
    """FSDP's whole layers, and the gradient of one before it is scattered."""
    if shards == 1 or request.listed:
        return []
    shape = request.model.shape
    layer = 2 * shape.largest_layer_parameters
    outer = 2 * shape.embedding_parameters
    terms = [
        Term(
            "gathered layers",
            FSDP_UNITS * layer + outer,
            f"{FSDP_UNITS} layers x {layer:,} B + embedding {outer:,} B",
            {},
            "FSDP: the current unit and the next",
        )
    ]
    if request.training.method == "full":
        terms.append(Term("gradient to scatter", layer, "one layer, 2 B a parameter"))
    return terms


def _micro_batch(request: Request, layout: Layout, room: int) -> int:
    """Tokens of one forward: as asked, or what fits, and one rollout at the least."""
    training, work = request.training, request.workload
    if training.micro_batch_tokens:
        return training.micro_batch_tokens
    per_token = activations.token_bytes(
        request.model.shape,
        int(BYTES[training.dtype]),
        checkpointing=training.gradient_checkpointing,
        full=training.method == "full",
    )
    per_token += activations.backward_bytes(request.model.shape, int(BYTES[training.dtype]))
    if training.full_logits:
        layer = _recomputed_bytes(request)
        later = layer if training.gradient_checkpointing else 0
        logits = activations.FULL_LOGIT_BYTES * request.model.shape.vocabulary
        per_token += max(0, logits - later)
    per_token = int(per_token * (1 + FRAGMENTATION))
    rank_rollouts = -(-work.rollouts // layout.trainer_gpus)
    most = min(DEFAULT_MICRO_BATCH_TOKENS, rank_rollouts * work.tokens)
    tile = int((1 + FRAGMENTATION) * activations.LOGPROB_TILE_BYTES)
    fit = (room - tile) // per_token
    return max(work.tokens, min(most, fit))


def _work(request: Request, tokens: int, book: Book) -> tuple[Term, ...]:
    shape, training = request.model.shape, request.training
    width = int(BYTES[training.dtype])
    recompute = training.gradient_checkpointing
    full = training.method == "full"
    per_token = activations.token_bytes(shape, width, checkpointing=recompute, full=full)
    held = book.bytes(
        "trainer.activation_bytes",
        tokens * per_token,
        activations.formula(shape, width, tokens, checkpointing=recompute, full=full),
        activations.SOURCE,
        micro_batch_tokens=tokens,
        bytes_per_token=per_token,
        gradient_checkpointing=recompute,
    )
    if training.full_logits:
        each = activations.FULL_LOGIT_BYTES * shape.vocabulary
        # Logits are gone before the backward recomputes the layer that ``held`` counts.
        later = _recomputed_bytes(request) if recompute else 0
        logits = Term(
            "logits",
            tokens * max(0, each - later),
            f"{tokens:,} tokens x (10 B x {shape.vocabulary:,} - {later:,} B recomputed later)",
        )
    else:
        tile = activations.LOGPROB_TILE_BYTES
        formula = f"{activations.LIVE_TILES} {activations.TILE_FORMULA}"
        logits = Term("log-probabilities", tile, formula)
    each = activations.backward_bytes(shape, width)
    backward = Term("backward", tokens * each, f"{tokens:,} tokens x {each:,} B of one layer")
    formula = book.figures["trainer.activation_bytes"].formula
    return Term("activations", held, formula), backward, logits


def _recomputed_bytes(request: Request) -> int:
    """Bytes of a token in the one layer that a backward with checkpointing computes again."""
    training = request.training
    width = int(BYTES[training.dtype])
    shape = request.model.shape
    layer = activations.layer_bytes(shape, width, full=training.method == "full")
    return layer + activations.backward_bytes(shape, width)
