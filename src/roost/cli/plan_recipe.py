"""What ``roost plan`` takes from a recipe: a request for cards, or the run on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from roost.cli.plan_table import phase_row
from roost.config import RunConfig
from roost.planner.embedded import EmbeddedPlan
from roost.planner.terms import find_figure, gib, term_figures


def recipe_values(config: RunConfig) -> dict[str, Any]:
    """A recipe by the names of the options of ``roost plan``; what it leaves open is left out."""
    train, rollout, data = config.train, config.rollout, config.data
    values: dict[str, Any] = {
        "model": config.model.path,
        "dtype": config.model.dtype,
        "method": train.method,
        "optimizer": train.optimizer,
        "gradient_checkpointing": train.gradient_checkpointing,
        "micro_batch_tokens": train.micro_batch_tokens,
        "iterations": train.num_iterations,
        "beta": config.loss.beta,
        "lora_rank": config.lora.rank,
        "lora_targets": config.lora.targets,
        "prompts": data.prompts_per_step,
        "generations": rollout.generations,
        "completion_length": rollout.max_completion_tokens,
        "prompt_length": data.max_prompt_tokens,
        "max_num_seqs": rollout.max_sequences,
    }
    asked = {**values, **_given(config.plan.model_dump())}
    return _given(asked)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class RunPlan:
    """The plan of what ``roost train`` would run on this machine, from the same preparation."""

    def __init__(self, config: RunConfig, base_dir: Path) -> None:
        # Here, not above: only this plan asks the machine, and so needs torch and the data.
        from roost.run.display import QuietDisplay
        from roost.run.prepare import prepare

        prepared = prepare(config, base_dir, QuietDisplay())
        self.config = config
        self.plan: EmbeddedPlan = prepared.plan
        self.shape = prepared.shape
        self.device = str(prepared.device)
        self.dtype = str(prepared.dtype).removeprefix("torch.")
        if self.plan.cache_bytes < self.plan.least_cache_bytes:
            self.plan.require_fit()  # the recipe contradicts itself, whatever the machine

    def show(self, *, as_json: bool, explain: list[str] | None) -> bool:
        """Print it; returns whether it fits."""
        if explain:
            figures = [find_figure(term_figures(self.plan.phases), name) for name in explain]
            text = [asdict(figure) for figure in figures]
            print(json.dumps(text) if as_json else "\n".join(f for x in figures for f in x.lines()))
        elif as_json:
            print(json.dumps(self.as_dict()))
        else:
            self.print(Console(highlight=False))
        return self.plan.fits

    def as_dict(self) -> dict[str, Any]:
        """The plan's figures under the names that a plan for cards has, and its own."""
        plan, work = self.plan, self.config
        gpus = 0 if self.device == "cpu" else 1
        own = plan.as_dict()
        rollouts = plan.rollouts_per_step
        terms = {term.name: term.bytes for phase in plan.phases for term in phase.terms}
        width = 4 if self.dtype == "float32" else 2
        return {
            "convention": "visible",
            "engine": "embedded",
            "device": self.device,
            "layout": {
                "mode": "embedded",
                "trainer": {"gpus": gpus, "strategy": "ddp"},
                "rollout": {"gpus": gpus, "tensor_parallel": 1, "replicas": 1},
                "sleep_level": 0,
            },
            "model": {
                "name": work.model.path,
                "parameters": self.shape.parameters,
                "kv_bytes_per_token": width * self.shape.kv_elements_per_token(),
            },
            "rollout": {
                "weight_bytes": 0,
                "kv_cache_bytes": plan.cache_bytes,
                "resident_rollouts": plan.resident_rollouts,
                "rollouts_per_step": rollouts,
                "passes_per_step": -(-rollouts // plan.resident_rollouts),
                "tokens_per_step": rollouts * work.rollout.max_completion_tokens,
            },
            "trainer": {
                "state_bytes": terms["weights"] + terms["optimizer"],
                "adapter_parameters": plan.trainable_parameters
                if work.train.method == "lora"
                else 0,
                "activation_bytes": terms["activations"],
                "reference_bytes": terms.get("reference", 0),
                "micro_batch_tokens": plan.micro_batch_tokens,
                "prefix_sharing_gain": plan.prefix_gain,
            },
            **own,
        }

    def print(self, console: Console) -> None:
        """Print it for a person."""
        plan, config = self.plan, self.config
        room = gib(plan.available_bytes)
        console.print(
            f"[bold]{escape(config.model.path)}[/bold], {config.train.method}, {self.dtype}, "
            f"embedded engine on {self.device} ({room} for this run)"
        )
        if plan.fits:
            spare = gib(plan.available_bytes - plan.peak.bytes)
            console.print(f"[bold green]fits[/bold green], {spare} to spare")
        else:
            short = gib(plan.peak.bytes - plan.available_bytes)
            console.print(
                f"[bold red]does not fit[/bold red]: {plan.peak.name} is {short} too large"
            )
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column()
        for number, phase in enumerate(plan.phases):
            table.add_row("" if number else "memory", phase_row(phase, plan.available_bytes))
        table.add_row(
            "rollouts",
            f"{plan.rollouts_per_step} a step, {plan.resident_rollouts} decode at once",
        )
        table.add_row("training", f"micro-batches of {plan.micro_batch_tokens:,} tokens")
        seconds = plan.step.line() if plan.step else "unknown: `roost pilot` measures them here"
        table.add_row("step", escape(seconds))
        gain = f"each prompt once saves {plan.prefix_gain:.2f} x tokens: G (P + R) / (P + G R)"
        table.add_row("sharing", gain)
        for one in plan.suggestions:
            table.add_row("try", f"{escape(one.change)}: {gib(one.headroom_bytes)} to spare")
        console.print(table)
