"""Evaluate a model or a run outside of training: ``roost eval``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from roost.config import RunConfig
from roost.config.loading import build_config, load_config, merge, quickstart_mapping
from roost.errors import ConfigError, DataError, ModelError
from roost.model.policy import Policy
from roost.model.source import HUB_ID, near_folder, read_json
from roost.rewards import Scored, ScoringReport
from roost.run import checkpoint
from roost.run.display import Display
from roost.run.engines import build_engine
from roost.run.evaluation import EvalResult, evaluate
from roost.run.folder import RunFolder, base_dir_of
from roost.run.interrupts import StopSwitch
from roost.run.launch import PythonObjects
from roost.run.prepare import Prepared, prepare
from roost.run.session import build_pool, load_policy, training_sampling
from roost.run.start_checks import check_servers
from roost.training.adapters import ADAPTER_CONFIG
from roost.training.launched import world_size


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated, and how."""

    config: RunConfig
    base_dir: Path
    run: RunFolder | None
    """The run whose newest checkpoint is evaluated; None evaluates the model as it is."""
    adapter: Path | None = None
    """A saved adapter to put on the model."""


def config_for_model(model: str, sections: Mapping[str, Any], base_dir: Path) -> Subject:
    """Where ``model`` is a run folder, its configuration; else the model with these sections.

    The tiny model without further sections is evaluated on the quickstart's task.
    """
    if _source(sections, "data") and not _source(sections, "eval"):
        # Prompts that are asked for are those to evaluate, whatever the run held out from where.
        sections = merge(sections, {"eval": {"source": None}})
    folder = RunFolder(Path(model))
    if folder.is_run:
        config = load_config(folder.config, base=_from_here(sections, base_dir))
        return Subject(config, base_dir_of(folder), folder)
    path = Path(model).expanduser()
    _check_there(path)
    mapping = merge(quickstart_mapping() if model == "tiny" else {}, sections)
    table = mapping.get("model", {})
    named = table if isinstance(table, Mapping) else {}
    if _is_adapter(path):
        mapping["model"] = {"path": _base_of(path), "tokenizer": _tokenizer_of(path), **named}
        return Subject(build_config(mapping), base_dir, None, adapter=path)
    mapping["model"] = {**named, "path": model}
    return Subject(build_config(mapping), base_dir, None)


def _from_here(sections: Mapping[str, Any], here: Path) -> dict[str, Any]:
    """Files that were named with the command are those of the working directory.

    The run's own recipe names files relative to its folder; a name that is no file here may be
    one of those.
    """
    found = dict(sections)
    for name in ("data", "eval"):
        source = _source(sections, name)
        if isinstance(source, str):
            found = merge(found, {name: {"source": _file_from(here, source)}})
    rewards = sections.get("rewards")
    functions = rewards.get("functions") if isinstance(rewards, Mapping) else rewards
    if isinstance(functions, list):
        named = [_reward_from(here, reward) for reward in functions]
        found = merge(found, {"rewards": {"functions": named}})
    return found


def _reward_from(here: Path, reward: Any) -> Any:
    if isinstance(reward, Mapping):
        return {**reward, "function": _file_from(here, reward.get("function"))}
    return _file_from(here, reward)


def _file_from(here: Path, name: Any) -> Any:
    """``file`` or ``file.py:function`` with its whole path, where there is such a file."""
    if not isinstance(name, str):
        return name
    where, colon, function = name.rpartition(":") if ".py:" in name else (name, "", "")
    path = here / Path(where).expanduser()
    return f"{path.resolve()}{colon}{function}" if path.is_file() else name


def _is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").exists()


def _base_of(folder: Path) -> str:
    """The model that an adapter was trained on, by its own word."""
    base = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"'{folder / ADAPTER_CONFIG}' names no base_model_name_or_path. Name the base model: "
            "--set model.path=..."
        )
    return base


def _tokenizer_of(folder: Path) -> str | None:
    """The one saved beside an adapter, or else None: the base model's."""
    return str(folder) if (folder / "tokenizer_config.json").is_file() else None


def _source(sections: Mapping[str, Any], name: str) -> Any:
    table = sections.get(name)
    return table.get("source") if isinstance(table, Mapping) else table


def _check_there(folder: Path) -> None:
    """Say of what is on disk that it is neither a model nor a run; a hub id is not on disk."""
    name = f"MODEL_OR_RUN = '{folder}'"
    if folder.is_dir() and not (folder / "config.json").exists() and not _is_adapter(folder):
        raise ModelError(
            f"{name} holds neither config.toml, as a run folder does, nor config.json, as a model "
            f"does, nor {ADAPTER_CONFIG}. Give a run folder, a model's folder, an adapter's, a hub "
            "id, or 'tiny'."
        )
    if not folder.is_dir() and str(folder) != "tiny" and not HUB_ID.match(str(folder)):
        near = near_folder(str(folder))
        raise ModelError(
            f"{name}: no such folder.{f' Did you mean {near!r}?' if near else ''} Give a run "
            "folder, a model's folder, a hub id, or 'tiny'."
        )


def evaluate_model(
    subject: Subject,
    display: Display,
    *,
    generations: int,
    pass_reward: float,
    objects: PythonObjects,
) -> EvalResult:
    """Load, sample the held-out prompts, score.

    Raises:
        ConfigError: no samples are asked for, or several processes are to take them.
        DataError: the source leaves no held-out prompts.
        RewardError: no sample could be scored.
    """
    if generations < 1:
        raise ConfigError(f"generations = {generations}: should be at least 1 sample a prompt.")
    if world_size() > 1:
        raise ConfigError(
            f"torchrun started {world_size()} processes, and an evaluation takes one. Start it "
            "without torchrun."
        )
    check_servers(subject.config, subject.base_dir)
    prepared = prepare(
        subject.config,
        subject.base_dir,
        display,
        data=objects.data,
        reward_functions=objects.functions,
        training=False,
    )
    for line in prepared.prompts.report.losses():
        display.warn(f"data    {line}")
    prompts = prepared.prompts.held_out
    if not prompts:
        raise DataError("eval.prompts = 0 leaves nothing to evaluate; set it to 1 or more.")
    policy = _load(subject, prepared, display)
    sampling = training_sampling(prepared, policy)
    temperature = subject.config.eval.temperature
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    engine = build_engine(prepared, policy)
    display.begin("evaluating", len(prompts) * generations)
    try:
        engine.sync()
        with StopSwitch() as stop, build_pool(prepared) as pool:
            return evaluate(
                engine,
                pool,
                prompts,
                generations,
                sampling,
                seed=subject.config.seed,
                pass_reward=pass_reward,
                stop=stop,
                on_sample=lambda sample: display.advance(),
                on_scores=lambda scores: _say_failures(scores, display),
            )
    finally:
        engine.close()
        display.end()


def _load(subject: Subject, prepared: Prepared, display: Display) -> Policy:
    """The model with its adapter or the run's newest checkpoint."""
    point = None
    if subject.run is not None and checkpoint.steps(subject.run.checkpoints):
        point = checkpoint.load(subject.run.checkpoints)
        checkpoint.check_inputs(point, model=prepared.model_fingerprint)
    policy = load_policy(prepared, subject.adapter)
    if point is not None:
        checkpoint.restore_weights(policy.trainable_parameters(), point.weights)
        policy.version = point.state["policy_version"]
        display.say(f"evaluating the checkpoint after step {point.step}")
    return policy


def _say_failures(scores: Sequence[Scored], display: Display) -> None:
    report = ScoringReport(of="that were sampled", purpose="to report")
    for message in report.add(scores).messages:
        display.warn(message)
