"""What a plan is asked of each published measurement: entries of ``data/ground_truth.json`` as
requests. Settings that a source leaves out are filled by rules, the same for all entries."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from roost.planner.cards import Card, registry
from roost.planner.models import KnownModel, find_shape
from roost.planner.request import Engine, Hardware, Layout, Request, Training, Workload

DATA = Path(__file__).parent / "data" / "ground_truth.json"
GIB = 2**30
OLDEST = 6
"""vLLM 0.N from which on the planner's terms are those of its profile run. Older rows set no
constant and are scored apart."""
FAST_GBPS = 50.0
"""Between nodes where nothing is said: 400 Gbit/s."""
PACKED_TOKENS = 358
"""Of one sequence of GSM8K with its completion, as entry verl-7b prints."""
Entry = dict[str, Any]


class NotPlannedError(Exception):
    """An entry that no plan can be asked of; says what is missing."""


@cache
def entries() -> tuple[Entry, ...]:
    """All entries, in order."""
    found: list[Entry] = json.loads(DATA.read_text("utf-8"))["entries"]
    return tuple(found)


def of(category: str) -> list[Entry]:
    """The entries of one category."""
    return [entry for entry in entries() if entry["category"] == category]


def model_of(entry: Entry) -> KnownModel:
    """The shape that an entry names.

    Raises:
        NotPlannedError: it names none, or one that the planner has no shape for.
    """
    text = entry["model"]
    if re.search(r"-Next|Vision|VLM|Reranker|unnamed", text):
        raise NotPlannedError("not a text decoder with a known shape")
    name = entry.get("arch") or text.split(" ")[0]
    name = re.sub(r"-(FP8|AWQ)$", "", name.split("/")[-1])
    try:
        return find_shape(name)
    except Exception as error:
        raise NotPlannedError(f"no shape for {text!r}") from error


def weights_of(entry: Entry) -> str | None:
    """How the engine holds the weights, by the model's name; None is as stored."""
    text = entry["model"].lower()
    if "fp8" in text:
        return "fp8"
    return "nf4" if "4bit" in text or "4-bit" in text else None


def card_of(entry: Entry) -> Card:
    """The card, with the visible memory that the log printed.

    Raises:
        NotPlannedError: the card is not named, and its visible memory is not printed.
    """
    text, visible = entry["gpu"], entry.get("gpu_visible_GiB")
    names = ("RTX 3090", "RTX 4090", "RTX PRO 6000", "L40S", "H100", "H200", "GB200", "B300", "T4")
    name = next((name for name in names if re.search(rf"\b{name}\b", text)), None)
    if "A100" in text:
        # Where SXM is not named: the all-reduce of the pairs is that of PCIe.
        name = "A100 40GB SXM" if "40GB" in text else "A100 80GB PCIe"
    if name in ("H100", "H200"):
        name += " SXM"
    if name is None and visible is None:
        raise NotPlannedError("card not named")
    card = registry().card(name or "A100 80GB PCIe")
    if visible is None:
        return card
    return replace(card, name=text, memory_visible_bytes=round(visible * GIB))


def minor_of(entry: Entry) -> int:
    """vLLM's release 0.N; 9 where nothing is said, the commonest in the file."""
    text = str(entry.get("engine") or entry["settings"].get("engine", ""))
    if "V0" in text:
        return 7
    match = re.search(r"0\.(\d+)", text)
    return int(match.group(1)) if match else 9


def engine_of(entry: Entry, card: Card) -> Engine:
    """The engine's options: as printed, else vLLM's defaults for the card and release."""
    settings, minor = entry["settings"], minor_of(entry)
    large = card.visible_bytes >= 70 * GIB and "A100" not in entry["gpu"] and minor >= 8
    batch = 8192 if large else 2048
    if minor < 8:  # one whole prompt in a batch before chunked prefill was the default
        batch = max(2048, settings.get("max_model_len", 2048))
    sequences = 1024 if large else 256
    if settings.get("colocate"):  # TRL: 4,096 tokens, and a rank's batch (1 at the least) x ranks
        batch, sequences = 4096, entry["tp"]
    return Engine(
        weight_dtype=weights_of(entry),
        max_num_seqs=settings.get("max_num_seqs", sequences),
        max_batched_tokens=settings.get("max_num_batched_tokens", batch),
        native_sampler=settings.get("sampler") != "FlashInfer",
        enforce_eager=bool(settings.get("enforce_eager")),
        graph_inside=minor >= 21,
    )


def startup_request(entry: Entry) -> tuple[Request, Layout]:
    """An engine that starts on its card; it must hold one sequence of ``max_model_len``.

    Raises:
        NotPlannedError: model, card or utilization are not known.
    """
    share, tp, settings = entry["gpu_memory_utilization"], entry["tp"], entry["settings"]
    if share is None:
        raise NotPlannedError("utilization not printed")
    card = card_of(entry)
    request = Request(
        model_of(entry),
        Hardware(card, gpus_per_node=tp + 1),
        Workload(1, 1, prompt_tokens=0, completion_tokens=settings.get("max_model_len", 4096)),
        engine=engine_of(entry, card),
    )
    return request, Layout("server", 1, "ddp", tp, tp, 1, share, 0)


def burst_request(entry: Entry) -> tuple[Request, Layout]:
    """A burst of requests that all come at once, each of a prompt of its own.

    Raises:
        NotPlannedError: lengths are not printed.
    """
    settings = {"tp": 1, "util": 0.9, **entry["settings"]}
    count = settings["concurrency"]
    if "output" not in settings:
        if count > 1:
            raise NotPlannedError("lengths not printed")
        settings |= {"input": 512, "output": 512}  # the cache of one sequence weighs nothing
    mean = entry["measured"].get("generated_tokens", count * settings["output"]) / count
    tp, share = settings["tp"], settings["util"] or settings["util_inferred"]
    apart = "nodes" in entry["gpu"]
    card = card_of(entry)
    request = Request(
        model_of(entry),
        Hardware(
            card,
            gpus_per_node=1 if apart else tp + 1,
            nodes=tp + 1 if apart else 1,
            network_gbps=settings.get("network_gbps_inferred", FAST_GBPS),
        ),
        Workload(
            prompts=count,
            generations=1,
            prompt_tokens=settings["input"],
            completion_tokens=settings["output"],
            mean_completion_tokens=mean,
        ),
        Training(),
        replace(engine_of(entry, card), native_sampler=False),
    )
    return request, Layout("server", 1, "ddp", tp, tp, 1, share, 0)


def step_request(entry: Entry) -> tuple[Request, Layout]:
    """A whole GRPO step, as far as its source describes it.

    Raises:
        NotPlannedError: it was made in a way that the planner has no plan for.
    """
    for prefix, build in (("nemo", _nemo), ("verl-", _verl), ("hfcb", _trl_notebook)):
        if entry["id"].startswith(prefix):
            return build(entry)
    raise NotPlannedError("its layout is not described")


def _nemo(entry: Entry) -> tuple[Request, Layout]:
    """NeMo-RL: trainer and engine share all cards; old and reference log-probabilities each take
    a forward; the mean length is printed, and prompts are taken as 128 tokens of it."""
    settings = entry["settings"]
    if settings["policy"] != "on-policy":
        raise NotPlannedError("generates one step ahead: Roost is on-policy")
    if model_of(entry).shape.experts:
        raise NotPlannedError("Megatron divides the experts over cards; Roost gathers whole layers")
    gpus, tp, prompt = settings["gpus"], settings["gen_tp"], 128
    rollouts, generations = settings["G_GBS_rollouts"], 16
    request = Request(
        model_of(entry),
        Hardware(card_of(entry), gpus_per_node=8, nodes=gpus // 8),
        Workload(
            prompts=rollouts // generations,
            generations=generations,
            prompt_tokens=prompt,
            completion_tokens=settings["max_seq"] - prompt,
            mean_completion_tokens=entry["measured"]["avg_seq_len"] - prompt,
        ),
        Training(
            "full", gradient_checkpointing=True, share_prompts=False, logprob_passes=2, beta=0.0
        ),
        Engine(native_sampler=False, graph_inside=False),
    )
    return request, Layout("colocate", gpus, "fsdp", gpus, tp, gpus // tp, 0.6, 1)


def _verl(entry: Entry) -> tuple[Request, Layout]:
    """verl, LoRA: old and reference log-probabilities, an adapter in an engine without graphs."""
    settings, measured = entry["settings"], entry["measured"]
    if settings.get("algorithm") != "GRPO-LoRA":
        raise NotPlannedError("batch not described")
    gpus, tp = settings["gpus"], settings["tp"]
    total, completion = measured["total_tokens"], measured["resp_mean"]
    rollouts = settings["prompts"] * settings["n"]
    prompt = total / rollouts - completion
    request = Request(
        model_of(entry),
        Hardware(registry().card("H100"), gpus_per_node=gpus),
        Workload(
            prompts=settings["prompts"],
            generations=settings["n"],
            prompt_tokens=settings["max_prompt"],
            completion_tokens=measured["resp_max"],
            mean_completion_tokens=completion,
            mean_prompt_tokens=prompt,
        ),
        Training(
            lora_rank=settings["lora_rank"], beta=0.001, logprob_passes=1, share_prompts=False
        ),
        Engine(
            max_num_seqs=settings["max_num_seqs"],
            max_batched_tokens=settings["max_num_batched_tokens"],
            enforce_eager=settings["enforce_eager"],
            graph_inside=False,
            adapter_sync=True,
        ),
    )
    return request, Layout("colocate", gpus, "fsdp", gpus, tp, gpus // tp, settings["util"], 1)


def _trl_notebook(entry: Entry) -> tuple[Request, Layout]:
    """TRL on one card: completions run to their budget, and beta is TRL's default, 0."""
    settings = entry["settings"]
    if not settings.get("use_vllm", True):
        raise NotPlannedError("generates with transformers, not with an engine")
    count, group = settings["completions_per_step"], settings.get("num_generations", 8)
    request = Request(
        model_of(entry),
        Hardware(registry().card("A100 80GB PCIe")),
        Workload(count // group, group, settings["max_prompt"], settings["max_completion"]),
        Training(lora_rank=8, lora_targets=["q_proj", "v_proj"], share_prompts=False),
        Engine(max_num_seqs=128, graph_inside=False),
    )
    return request, Layout("colocate", 1, "ddp", 1, 1, 1, settings.get("util", 0.3), 0)


def boundary_requests(entry: Entry) -> list[tuple[str, bool, Request, Layout]]:
    """What ran and what ran out of memory, of an entry that lists both: name, whether it fits, and
    the request. verl: a micro-batch of as many sequences as there are prompts, logits in full.

    Raises:
        NotPlannedError: the settings are not printed.
    """
    settings, measured = entry["settings"], entry["measured"]
    if "prompts_oom" not in measured:
        raise NotPlannedError("settings not printed")
    gpus, tp = settings["gpus"], settings.get("tp", 1)
    out = []
    for fits, counts in ((True, measured["prompts_fit"]), (False, measured["prompts_oom"])):
        for count in counts:
            request = Request(
                model_of(entry),
                Hardware(registry().card("H100"), gpus_per_node=gpus),
                Workload(count, settings["n"], settings["max_prompt"], settings["max_response"]),
                Training(
                    lora_rank=settings["lora_rank"],
                    micro_batch_tokens=-(-count * PACKED_TOKENS // gpus),
                    full_logits=True,
                    share_prompts=False,
                ),
                Engine(
                    max_num_seqs=settings["max_num_seqs"],
                    max_batched_tokens=settings["max_num_batched_tokens"],
                    graph_inside=False,
                ),
            )
            layout = Layout("colocate", gpus, "fsdp", gpus, tp, gpus // tp, settings["util"], 1)
            out.append((f"{entry['id']} {count} prompts", fits, request, layout))
    return out
