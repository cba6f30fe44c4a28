"""What a plan is asked of each published measurement: entries of ``data/ground_truth.json`` as
requests to an engine (``plan_step_cases.py`` has whole steps). Settings that a source leaves out
are filled by rules, the same for all entries."""

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
