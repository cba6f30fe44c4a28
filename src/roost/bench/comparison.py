"""``roost bench`` and ``roost bench generate``: from what was asked to rows, ratios and tables."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roost.bench.contender import Contender
from roost.bench.job import Job, Workload
from roost.bench.prompts import Prompter, write_rows
from roost.bench.race import WARM_UP, Outcome, Say, race
from roost.bench.rivals import ENTRANTS, FLOOR, ROOST, environment, split_installed
from roost.bench.turns import ratios_of, row_of
from roost.config.loading import build_config
from roost.errors import ConfigError, EngineError
from roost.model import loading
from roost.model.source import find_model


@dataclass(frozen=True, slots=True)
class Request:
    """A comparison, as it was asked for."""

    kind: str
    """``step`` or ``generate``."""
    model: str
    workload: Workload
    rivals: Sequence[str]
    rounds: int
    """Steps of each that count."""
    threads: int
    deadline_s: float
    """For loading, and for a step."""
    method: str = "full"


def compare(request: Request, say: Say) -> dict[str, Any]:
    """Race Roost against its rivals.

    Returns:
        ``rows`` and ``ratios`` (see ``roost.bench.turns``); ``settings`` of each; ``failed`` and
        ``not_installed``, which say of the others why they have no row; for generation
        ``floor_share``, the floor's time as a share of Roost's.

    Raises:
        ConfigError: the model's context is too short for the workload.
        EngineError: Roost itself did not finish.
    """
    here, lacking = split_installed(request.rivals, request.kind)
    names = [ROOST, *here, *([FLOOR] if request.kind == "generate" else [])]
    with tempfile.TemporaryDirectory(prefix="roost-bench-") as folder:
        job = _prepare(request, Path(folder))
        starters = [(name, _starter(job, name, Path(folder))) for name in names]
        outcomes = race(starters, request.rounds, request.deadline_s, say)
    for name, lines in lacking.items():
        say(f"{name}: not installed; {'; '.join(lines)}")
    return {
        "kind": request.kind,
        "model": request.model,
        "method": request.method if request.kind == "step" else None,
        "workload": {**asdict(request.workload), "prompt_tokens": job.prompt_tokens},
        "threads": request.threads,
        "steps": request.rounds,
        **_results(outcomes),
        "not_installed": lacking,
    }


def _prepare(request: Request, folder: Path) -> Job:
    """Write the prompts of all turns, and describe what each contender does with them."""
    config = build_config({"model": request.model})
    source = find_model(config.model)
    prompter = Prompter(loading.load_tokenizer(source))
    workload, turns = request.workload, WARM_UP + request.rounds
    rows = prompter.rows(workload.prompts * turns, workload.prompt_tokens)
    write_rows(rows, folder / "prompts.jsonl")
    job = Job(
        name=ROOST,
        kind=request.kind,
        model=source.location,
        method=request.method,
        prompts=workload.prompts,
        generations=workload.generations,
        prompt_tokens=max(len(prompt.token_ids) for prompt in prompter.encode(rows)),
        completion_tokens=workload.completion_tokens,
        turns=turns,
        threads=request.threads,
        folder=str(folder),
        rows=str(folder / "prompts.jsonl"),
    )
    context = loading.context_length(loading.load_model_config(source))
    if job.sequence_tokens > context:
        raise ConfigError(
            f"prompts of {job.prompt_tokens} tokens with completions of {job.completion_tokens} "
            f"exceed the {context} that '{request.model}' takes. Choose another workload or model."
        )
    return job


def _starter(job: Job, name: str, folder: Path) -> Callable[[], Contender]:
    own = folder / name
    own.mkdir()
    path = own / "job.json"
    replace(job, name=name, folder=str(own)).write(path)
    command = [sys.executable, "-m", "roost.bench.child", str(path)]

    def start() -> Contender:
        surroundings = environment(job.threads)
        return Contender(name, command, log=own / "log.txt", environment=surroundings)

    return start


def _results(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    failed = {outcome.name: outcome.failure for outcome in outcomes if outcome.failure is not None}
    if ROOST in failed:
        raise EngineError(f"Roost's own process {failed[ROOST]}")
    finished = [outcome for outcome in outcomes if outcome.failure is None]
    rows = [row_of(outcome.name, outcome.turns) for outcome in finished]
    by_name = {row["name"]: row for row in rows}
    rivals = [row for row in rows if row["name"] != FLOOR]
    results: dict[str, Any] = {
        "rows": rows,
        "ratios": ratios_of(rivals, by_name[ROOST]),
        "settings": {outcome.name: outcome.settings for outcome in finished},
        "failed": failed,
    }
    if FLOOR in by_name:
        for row in rows:
            row["floor_share"] = by_name[FLOOR]["step_s"] / row["step_s"]
        results["floor_share"] = by_name[ROOST]["floor_share"]
    return results


def titles(kind: str) -> dict[str, str]:
    """What each name of a race stands for."""
    return {name: entrant.title for name, entrant in ENTRANTS[kind].items()}
