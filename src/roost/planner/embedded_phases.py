"""Bytes of a run on one device by phase and term: the weights and states that every phase holds,
what decoding holds besides, and what a forward and backward hold. Every term has its formula."""

from __future__ import annotations

from collections.abc import Iterator

from roost.planner import activations, colocated
from roost.planner.embedded_sizes import RunSizes
from roost.planner.terms import Phase, Term

FRAGMENTATION = {("cpu", "full"): 0.2, ("cpu", "lora"): 0.5}
"""Of what a forward and backward take and give back, the share that is held besides. Resident over
kept bytes of packs of 328 to 892 tokens on a CPU: 1.00 to 1.18 in full training, 1.44 to 1.48 with
an adapter, whose sums leave more holes in the heap (``benchmarks/plan_activations.py``)."""
GPU_FRAGMENTATION = 0.15
"""The same of a GPU (``trainer_memory``)."""
LIBRARY_BYTES = 12 * 2**20
"""Libraries that a process loads with its first step; measured on a CPU."""
KERNEL_BYTES = {2: 16 * 2**20, 4: 0}
"""Products that a CPU compiles in 16 bit (``run.heap`` bounds them), by bytes of a number."""
SAMPLE_BYTES = 2048
"""Of a finished sample besides its tokens: its lists, rewards and text."""
SAMPLE_TOKEN_BYTES = 144
"""Of each of its tokens: places in five lists (40 B, and an eighth for their growth), a Python
integer (32 B), two floats (48 B), and text; ``tests/engines/test_sample_bytes.py`` measures it."""
SCORED_TOKEN_BYTES = 32
"""Of each of its tokens once it is trained on: the trainer's log-probability."""
PREFILL_TOKENS = 2048
"""Most prompt tokens of one prefill."""
DRAW_BYTES = 4 * 4
"""Of one vocabulary entry of a row that draws: float32 logits, those at the temperature,
probabilities and their cumulative sum."""


def phases(sizes: RunSizes, cache: int, micro: int) -> tuple[Phase, ...]:
    """All phases, with so many bytes of cache and micro-batches of so many tokens."""
    generate, *more = decoding_phases(sizes, cache)
    return generate, train_phase(sizes, micro), *more


def decoding_phases(sizes: RunSizes, cache: int) -> list[Phase]:
    """Those that depend on the cache."""
    found = [generate_phase(sizes, cache)]
    if sizes.served and sizes.config.rollout.launch:
        found.append(server_phase(sizes, cache))
    elif sizes.evaluated and not sizes.colocated:
        found.append(evaluate_phase(sizes, cache))
    return found


def generate_phase(sizes: RunSizes, cache: int) -> Phase:
    """All that is held while the samples of a step are made."""
    residual = _residual(sizes.generate_residual)
    samples = _samples(sizes, sizes.step_samples)
    return Phase("generate", (*_resident(sizes), *samples, *_generate(sizes, cache), *residual))


def evaluate_phase(sizes: RunSizes, cache: int) -> Phase:
    """The same in an evaluation, whose samples share no prompt."""
    used = min(cache, sizes.flat_bytes(sizes.evaluated))
    rows = max(1, used // sizes.flat_bytes(1))
    residual = _residual(sizes.generate_residual)
    samples = _samples(sizes, sizes.evaluated)
    return Phase("evaluate", (*_resident(sizes), *samples, *_decode(sizes, used, rows), *residual))


def train_phase(sizes: RunSizes, micro: int) -> Phase:
    """All that is held in a forward and backward of ``micro`` tokens, or of all that there are."""
    residual = _residual(sizes.train_residual)
    samples = _samples(sizes, sizes.step_samples, SAMPLE_TOKEN_BYTES + SCORED_TOKEN_BYTES)
    return Phase("train", (*_resident(sizes), *samples, *_train(sizes, micro), *residual))


def server_phase(sizes: RunSizes, cache: int) -> Phase:
    """What one server holds, always, on a device of its own or beside the trainer."""
    process = Term("process", sizes.process, "about as large as this one")
    return Phase("server", (process, *_engine(sizes, cache)), "rollout")


def _resident(sizes: RunSizes) -> Iterator[Term]:
    """What is held in every phase."""
    if sizes.process:
        yield Term("process", sizes.process, "measured: Python and libraries")
    if sizes.device == "cpu":
        later = LIBRARY_BYTES + KERNEL_BYTES[sizes.dtype_bytes]
        yield Term("libraries", later, "loaded and compiled with the first step")
    width, parameters = sizes.dtype_bytes, sizes.shape.parameters + sizes.adapter
    yield Term("weights", width * parameters, f"{width} B x {parameters:,} parameters")
    masters = 0 if width == 4 else 4
    moments = 2 if sizes.config.train.optimizer == "adamw_8bit" else 8
    yield Term(
        "optimizer",
        (masters + 4 + moments) * sizes.trainable,
        f"({masters} master + 4 gradient + {moments} moments) B x {sizes.trainable:,} trained",
    )
    if sizes.config.loss.beta > 0 and not sizes.adapter:
        yield Term("reference", width * parameters, f"{width} B x {parameters:,} parameters")


def _samples(sizes: RunSizes, count: int, token_bytes: int = SAMPLE_TOKEN_BYTES) -> Iterator[Term]:
    """Finished samples, which are Python's: beside a GPU they are held by the host."""
    if sizes.device == "cpu":
        tokens = count * sizes.completion
        formula = f"{SAMPLE_BYTES:,} B x {count:,} samples + {token_bytes} B x {tokens:,} tokens"
        yield Term("samples", SAMPLE_BYTES * count + token_bytes * tokens, formula)


def _generate(sizes: RunSizes, cache: int) -> Iterator[Term]:
    if sizes.colocated:
        yield from _engine(sizes, cache)
    if sizes.colocated or sizes.served:
        yield colocated.bucket_term(sizes.shape, sizes.dtype_bytes, sizes.adapter)
    else:
        used = min(cache, sizes.step_cache())
        yield from _decode(sizes, used, sizes.resident_rollouts(cache))


def _decode(sizes: RunSizes, used: int, rows: int) -> Iterator[Term]:
    """What the embedded engine holds: so many bytes of cache, and so many rows that draw."""
    # What is kept from one phase to the next is as large as the largest call needs.
    held = max(used, sizes.kept_cache)
    yield Term("key-value cache", held, f"bound; {sizes.kv_token:,} B a token")
    tokens = min(PREFILL_TOKENS, sizes.config.data.prompts_per_step * sizes.prompt)
    layer = activations.layer_bytes(sizes.shape, sizes.dtype_bytes)
    yield Term("prefill", layer * tokens, f"{tokens:,} tokens x {layer:,} B of one layer")
    vocabulary = sizes.shape.vocabulary
    formula = f"{DRAW_BYTES} B x {rows} rows x {vocabulary:,}"
    yield Term("logits", DRAW_BYTES * rows * vocabulary, formula)
    if sizes.recorded:
        yield _recorded_steps(sizes, rows)
    if sizes.packed:
        multiplied = sizes.shape.multiplied_parameters
        formula = f"2 B x {multiplied:,} parameters of products, laid out for the kernels"
        yield Term("packed weights", 2 * multiplied, formula)


def _train(sizes: RunSizes, micro: int) -> Iterator[Term]:
    """What a forward and backward of ``micro`` tokens holds besides."""
    if sizes.colocated and sizes.sleep_level == 0:
        yield from _engine(sizes, sizes.awake_cache)
    if sizes.kept_cache:
        yield Term("kept cache", sizes.kept_cache, "all that a step's samples use")
        yield _recorded_steps(sizes, sizes.resident_rollouts(sizes.kept_cache))
    passing = tuple(_forward_backward(sizes, min(micro, sizes.update_tokens)))
    yield from passing
    if micro < sizes.prompt + sizes.config.rollout.generations * sizes.completion:
        gradient = sizes.kv_token * 4 // sizes.dtype_bytes
        yield Term(
            "shared prompt",
            (sizes.kv_token + gradient) * sizes.prompt,
            f"keys and values, {sizes.kv_token:,} B a token, and their float32 gradient x "
            f"{sizes.prompt:,} tokens",
        )
    loose = FRAGMENTATION.get((sizes.device, sizes.config.train.method), GPU_FRAGMENTATION)
    held = sum(term.bytes for term in passing)
    yield Term("fragmentation", int(loose * held), f"{loose} x what comes and goes")
    if not sizes.adapter:
        yield _gradient_in_flight(sizes)


def _forward_backward(sizes: RunSizes, tokens: int) -> Iterator[Term]:
    """What comes and goes with each micro-batch."""
    shape, width, full = sizes.shape, sizes.dtype_bytes, not sizes.adapter
    how = {"checkpointing": sizes.recompute, "full": full}
    per_token = activations.token_bytes(shape, width, **how)
    formula = activations.formula(shape, width, tokens, **how)
    yield Term("activations", tokens * per_token, formula, {}, activations.SOURCE)
    backward = activations.backward_bytes(shape, width)
    yield Term("backward", tokens * backward, f"{tokens:,} tokens x {backward:,} B of one layer")
    tiles = activations.tile_bytes(shape, tokens)
    formula = f"{activations.LIVE_TILES} {activations.TILE_FORMULA}"
    yield Term("log-probabilities", tiles, formula)
    if full:
        kept = activations.kept_product_bytes(shape, tokens, width)
        formula = f"{width} B x {tokens:,} tokens x {shape.vocabulary:,}, at most 128 MiB"
        yield Term("kept logits", kept, formula)


def _recorded_steps(sizes: RunSizes, rows: int) -> Term:
    """Each width's logits in float32, all widths together twice the widest; and in working
    precision those of the one that runs."""
    size, vocabulary = 8 + sizes.dtype_bytes, sizes.shape.vocabulary
    formula = f"(2 x 4 + {sizes.dtype_bytes}) B x {rows} rows x {vocabulary:,}"
    return Term("recorded steps", size * rows * vocabulary, formula)


def _gradient_in_flight(sizes: RunSizes) -> Term:
    """The largest gradient in working precision: the embedding's on a GPU, a layer's product's on a
    CPU, where the embedding's has the rows of a pack's tokens alone. The head's is added to its
    float32 sum tile by tile."""
    width, shape = sizes.dtype_bytes, sizes.shape
    if sizes.device == "cpu":
        largest = shape.hidden * shape.intermediate
        formula = f"{width} B x {shape.hidden:,} x {shape.intermediate:,}"
    else:
        largest = shape.embedding_parameters
        formula = f"{width} B x {largest:,}, the embedding's"
    return Term("gradient in flight", width * largest, formula)


def _engine(sizes: RunSizes, cache: int) -> Iterator[Term]:
    return colocated.engine_terms(
        sizes.shape,
        sizes.dtype_bytes,
        cache,
        sizes.engine_kv_token,
        sizes.adapter,
        shards=sizes.config.rollout.tensor_parallel,
    )


def _residual(count: int) -> Iterator[Term]:
    if count:
        yield Term("residual", count, "measured here by `roost pilot`: peak less the other terms")
