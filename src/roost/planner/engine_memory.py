"""What one vLLM engine takes of its cards, and how many rollouts it holds at once.

The profile run, the sampler and the block arithmetic are vLLM's; the constants come from
the startup logs in ``benchmarks/data``, and ``benchmarks/plan_fit.py`` reproduces them.
"""

from __future__ import annotations

from dataclasses import dataclass

from roost.planner.bands import QUANTILE_90, cache_spread
from roost.planner.book import Book
from roost.planner.model_shape import ModelShape
from roost.planner.request import BYTES, Layout, Request
from roost.planner.terms import Term, Value, gib

BLOCK = 16
"""Tokens of one block of vLLM's cache."""
GIB = 2**30
SAMPLER_BYTES = 38.7
"""Of PyTorch's sampler for each sequence and vocabulary entry, fit on the logged peaks. By count it
is 39: logits in 16 bit and in float32 (2 + 4), sorted values and their indices (4 + 8), softmax,
cumulative sum and mask of the sorted (4 + 4 + 1), logits put back in order, their softmax and the
exponential noise (4 + 4 + 4)."""
FUSED_SAMPLER_BYTES = 14
"""The same of FlashInfer's, which does not sort: logits in 16 bit and float32 (2 + 4), softmax and
exponential noise (4 + 4)."""
FORWARD_WIDTH = 6
"""Profile run: bytes per token are ``6 f / tp + 6 h``. Fit on two logged peaks."""
LEAST_ACTIVATION = GIB // 4
NON_TORCH = {False: GIB // 10, True: 3 * GIB // 10}
"""Outside torch's allocator, without and with NCCL: medians of logs, which say 0.01 to 0.35 and
0.15 to 0.55 GiB."""
GRAPH_BYTES = GIB // 2
"""CUDA graphs: logs say 0.1 to 2.4 GiB; their median."""
MXFP4_BYTES = 4.25 / 8
"""Of one weight: 4 bits, and 8 bits of scale for each 32."""
MXFP4_PAD = 256
"""vLLM pads the hidden size of an expert to a multiple of this."""
MXFP4_SLICE_PAD = 64
"""And one card's slice of its width to a multiple of this."""
NF4_BYTES = (4 + 0.127) / 8
"""Of one weight: 4 bits and double-quantised constants (QLoRA, arXiv:2305.14314)."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """One engine: totals over its cards, and the terms of one card."""

    share: int
    """All that the engine may take, over its tensor-parallel cards."""
    weights: int
    cache: int
    """Left for keys and values; below 0 where the weights alone are too much."""
    resident: int
    """Rollouts at full length that the cache holds."""
    cache_tokens: int
    terms: tuple[Term, ...]
    """Of one card; they add up to its share where the cache is not negative."""


def engine_memory(request: Request, layout: Layout, book: Book) -> EngineMemory:
    """Plan one engine."""
    tp = layout.tensor_parallel
    card_share = round(layout.utilization * request.card_bytes)
    share = book.bytes(
        "rollout.engine_share_bytes",
        card_share * tp,
        "gpu_memory_utilization x card memory x tensor_parallel",
        "vLLM: gpu_memory_utilization",
        gpu_memory_utilization=layout.utilization,
        card_bytes=request.card_bytes,
        tensor_parallel=tp,
    )
    weights = _weights(request, layout, book)
    overheads = () if request.listed else tuple(overhead_terms(request, layout))
    card_weights = -(-weights // tp)
    card_cache = card_share - card_weights - sum(term.bytes for term in overheads)
    cache = share - weights if request.listed else card_cache * tp
    book.bytes(
        "rollout.kv_cache_bytes",
        max(0, cache),
        "engine_share_bytes - weight_bytes"
        + ("" if request.listed else " - tensor_parallel x (activations + non-torch + graphs)"),
        "vLLM: what is left of the share is cache",
        engine_share_bytes=share,
        weight_bytes=weights,
        **{_key(term.name): term.bytes for term in overheads},
    )
    tokens = _cache_tokens(request, layout, card_cache)
    resident = _resident(request, layout, cache if request.listed else card_cache, book)
    cache_term = Term(
        "key-value cache",
        max(0, card_cache),
        "what is left of the share",
        {"tokens": tokens},
        "vLLM",
    )
    weight_term = Term("engine weights", card_weights, f"{gib(weights)} / {tp} cards")
    terms = (weight_term, cache_term, *overheads)
    if not request.listed:
        _band(request, tp, cache, terms, book)
    return EngineMemory(share, weights, cache, resident, tokens, terms)


def _band(request: Request, tp: int, cache: int, terms: tuple[Term, ...], book: Book) -> None:
    """Between which figures the cache is expected."""
    spread = tp * cache_spread(terms, served_dtype(request), joined=tp > 1)
    for name, sign in (("low", -1), ("high", 1)):
        book.bytes(
            f"rollout.kv_cache_{name}_bytes",
            max(0, int(cache + sign * QUANTILE_90 * spread)),
            f"kv_cache_bytes {'-+'[sign > 0]} 1.645 x spread: 90 % of logs are expected between "
            "low and high",
            "spread of each term in vLLM startup logs (planner/bands.py)",
            kv_cache_bytes=cache,
            spread_bytes=spread,
        )


def overhead_terms(request: Request, layout: Layout) -> list[Term]:
    """What an engine takes of one card besides weights and cache."""
    shape, tp, engine = request.model.shape, layout.tensor_parallel, request.engine
    sequences = max_sequences(request, layout)
    batch = engine.max_batched_tokens or (4096 if layout.mode == "colocate" else 8192)
    wide = shape.intermediate * max(1, shape.active_experts)
    forward = int(batch * (FORWARD_WIDTH * wide / tp + FORWARD_WIDTH * shape.hidden))
    each = SAMPLER_BYTES if engine.native_sampler else FUSED_SAMPLER_BYTES
    sampler = int(each * sequences * shape.vocabulary)
    peak = max(forward, sampler, LEAST_ACTIVATION)
    terms = [
        Term(
            "engine activations",
            peak,
            f"max(sampler {each} B x sequences x vocabulary, forward tokens x "
            f"(6 f / tp + 6 h), {gib(LEAST_ACTIVATION)})",
            {"sequences": sequences, "tokens": batch, "sampler": sampler, "forward": forward},
            "fit on vLLM startup logs",
        ),
        Term(
            "engine outside torch",
            NON_TORCH[tp > 1],
            "0.10 GiB, or 0.30 GiB with NCCL",
            {"tensor_parallel": tp},
            "vLLM startup logs",
        ),
    ]
    if not engine.enforce_eager and engine.graph_inside:
        terms.append(Term("CUDA graphs", GRAPH_BYTES, "0.5 GiB", {}, "median of vLLM startup logs"))
    return terms


def max_sequences(request: Request, layout: Layout) -> int:
    """vLLM's ``max_num_seqs``: as asked, or the rollouts of one engine."""
    return request.engine.max_num_seqs or engine_rollouts(request, layout)


def engine_rollouts(request: Request, layout: Layout) -> int:
    """Rollouts that one engine makes in a step."""
    return -(-request.workload.rollouts // layout.replicas)


def served_dtype(request: Request) -> str:
    """How the engine holds the weights: as asked, or as stored where that can be counted."""
    dtype = request.engine.weight_dtype or request.model.stored
    return dtype if dtype in ("mxfp4", "nf4", *BYTES) else "bfloat16"


def weight_bytes(shape: ModelShape, dtype: str, tensor_parallel: int = 1) -> int:
    """Weights of one whole copy, over all its cards."""
    if dtype == "mxfp4":
        padded = _padded(shape.hidden, MXFP4_PAD) / shape.hidden
        part = -(-shape.intermediate // tensor_parallel)
        padded *= _padded(part, MXFP4_SLICE_PAD) * tensor_parallel / shape.intermediate
        experts = sum(
            b.count * x.parameters for b in shape.blocks for x in b.linears if x.copies > 1
        )
        packed = int(experts * MXFP4_BYTES * padded)
        return packed + 2 * (shape.parameters - experts)
    if dtype in ("nf4", "fp8"):
        per = NF4_BYTES if dtype == "nf4" else 1.0
        return int(per * shape.linear_parameters) + 2 * (shape.parameters - shape.linear_parameters)
    return int(BYTES[dtype] * shape.parameters)


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _weights(request: Request, layout: Layout, book: Book) -> int:
    model, tp = request.model, layout.tensor_parallel
    shape = model.shape
    dtype = served_dtype(request)
    total = weight_bytes(shape, dtype, tp)
    inputs: dict[str, Value] = {"parameters": shape.parameters, "dtype": dtype}
    if request.listed:
        formula = "bytes per parameter x parameters"
    else:
        formula = "bytes per parameter x parameters + tensor_parallel x (copied heads + rotary)"
        copied, rotary = _replicated(shape, tp)
        total += tp * (copied + rotary)
        inputs |= {"copied_head_bytes": copied, "rotary_bytes": rotary, "tensor_parallel": tp}
    return book.bytes("rollout.weight_bytes", total, formula, model.source, **inputs)


def _replicated(shape: ModelShape, tp: int) -> tuple[int, int]:
    """On each card: heads of keys and values beyond its share, and the table of rotary angles."""
    rotary = 2 * shape.max_positions * shape.head_dim
    if tp <= shape.kv_heads or shape.latent_attention:
        return 0, rotary
    extra = 1 - shape.kv_heads / tp
    one_head = 2 * shape.hidden * shape.head_dim
    return int(2 * extra * one_head * shape.layers), rotary


def _cache_tokens(request: Request, layout: Layout, card_cache: int) -> int:
    """Tokens of one card's cache, in whole blocks, as vLLM logs them."""
    elements = request.model.shape.kv_elements_per_token(layout.tensor_parallel)
    block = BLOCK * int(elements * BYTES[request.engine.cache_dtype])
    return max(0, card_cache) // block * BLOCK


def _resident(request: Request, layout: Layout, cache: int, book: Book) -> int:
    """Rollouts at full length that fit the cache."""
    shape, tokens = request.model.shape, request.workload.tokens
    width = BYTES[request.engine.cache_dtype]
    if request.listed:
        one = int(shape.kv_elements(tokens) * width)
        formula = "floor(kv_cache_bytes / (kv_bytes_per_token x tokens of a rollout))"
    else:
        blocks = -(-tokens // BLOCK) * BLOCK
        one = int(shape.kv_elements(blocks, layout.tensor_parallel) * width)
        formula = "floor(cache of one card / (its kv_bytes_per_token x tokens in whole blocks))"
    return book.whole(
        "rollout.resident_rollouts",
        max(0, cache) // one,
        "rollouts",
        formula,
        "vLLM: paged cache, no eviction",
        cache_bytes=max(0, cache),
        bytes_per_rollout=one,
        tokens_per_rollout=tokens,
        tensor_parallel=layout.tensor_parallel,
    )


def _key(name: str) -> str:
    return name.lower().replace(" ", "_").replace("-", "_")
