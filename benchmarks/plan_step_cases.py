"""Whole GRPO steps, and what ran out of memory in training, as requests."""

from __future__ import annotations

from plan_cases import Entry, NotPlannedError, card_of, model_of

from roost.planner.cards import registry
from roost.planner.request import Engine, Hardware, Layout, Request, Training, Workload

PACKED_TOKENS = 358
"""Of one sequence of GSM8K with its completion, as entry verl-7b prints."""


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
