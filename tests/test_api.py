"""``import roost``: what the command line does, with Python's own objects."""

from __future__ import annotations

import json
import re
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
import pytest
import tomli_w

import roost
from roost.config.loading import load_config
from roost.errors import CheckpointError, ConfigError, DataError, RewardError
from roost.run import api
from roost.run.report import RunResult

ROWS = [{"prompt": f"{a}+{a}=", "double": 2 * a} for a in range(12)]
SMALL: dict[str, Any] = {
    "rollout": {"generations": 4, "max_completion_tokens": 4},
    "train": {"steps": 1, "learning_rate": 1e-3},
    "eval": {"prompts": 3},
}


def make_rewards() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Made within, as a script's own are, they travel by value: workers do not import this."""

    def closeness(completions: list[str], double: list[int]) -> list[float]:
        """1 for the right number, less the further away."""
        numbers = [int(text) if text.isdigit() else -99 for text in completions]
        return [1 / (1 + abs(n - right)) for n, right in zip(numbers, double, strict=True)]

    def brevity(completions: list[str], **columns: Any) -> list[float]:
        assert {"double", "prompts", "completion_ids", "finish_reasons"} <= columns.keys()
        return [1 / (1 + len(text)) for text in completions]

    return closeness, brevity


closeness, brevity = make_rewards()
REWARDS = [closeness, {"function": brevity, "name": "short", "weight": 0.5}]


@dataclass(frozen=True)
class Trained:
    folder: Path
    result: RunResult
    resumed: RunResult


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One step, and then by ``resume`` a second."""
    folder = tmp_path_factory.mktemp("api") / "run"
    result = roost.train(
        model="tiny",
        data={"source": ROWS, "prompts_per_step": 3},
        rewards={"functions": REWARDS, "workers": 1},
        output={"folder": str(folder)},
        quiet=True,
        **SMALL,
    )
    resumed = roost.train(
        resume=folder,
        data=ROWS,
        rewards=REWARDS,
        train={"steps": 2},
        quiet=True,
    )
    return Trained(folder, result, resumed)


def metric_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_result_says_what_came_of_it(trained: Trained) -> None:
    result, first = trained.result, metric_rows(trained.folder)[0]
    assert (result.folder, result.finished, result.steps) == (trained.folder, True, 1)
    assert result.reward_first == result.reward_last == first["reward"]
    assert list(result.held_out) == ["0", "1"]
    assert result.held_out["1"]["prompts"] == 3
    assert (trained.folder / "final/model.safetensors").is_file()


def test_rows_and_functions_are_those_that_were_given(trained: Trained) -> None:
    for step in (1, 2):
        samples = pq.read_table(trained.folder / f"samples/step-{step:06d}.parquet").to_pylist()
        assert len(samples) == 12
        assert len({sample["prompt"] for sample in samples}) == 3
        for sample in samples:
            [row] = [row for row in ROWS if row["prompt"] == sample["prompt"]]
            [close] = closeness([sample["completion"]], [row["double"]])  # type: ignore[list-item]
            short = 1 / (1 + len(sample["completion"]))
            assert sample["reward/closeness"] == pytest.approx(close)
            assert sample["reward/short"] == pytest.approx(short)
            assert sample["reward"] == pytest.approx(close + 0.5 * short)


def test_resume_goes_on_with_what_may_change(trained: Trained) -> None:
    assert trained.resumed.steps == 2
    assert trained.resumed.finished
    assert [row["step"] for row in metric_rows(trained.folder)] == [1, 2]
    assert list(trained.resumed.held_out) == ["0", "1", "2"]
    assert tomllib.loads((trained.folder / "config.toml").read_text())["train"]["steps"] == 2


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"loss": "grpo"}, CheckpointError, r"loss\.type was 'dapo', is 'grpo'"),
        ({"trian": {"steps": 3}}, ConfigError, r"trian: no such section.*'train'"),
        ({"train": {"steps": 1}}, CheckpointError, r"train\.steps = 1: the run has done 2 steps"),
        ({"data": ROWS[:8]}, CheckpointError, r"not made with the data"),
        ({"data": None}, DataError, r"were Python objects\. Give them again"),
        ({"rewards": None}, RewardError, r"no reward 'closeness'"),
    ],
)
def test_resume_refuses_another_run(
    trained: Trained, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    before = (trained.folder / "config.toml").read_bytes()
    objects: dict[str, Any] = {"data": ROWS, "rewards": REWARDS}
    with pytest.raises(error, match=message):
        roost.train(resume=trained.folder, quiet=True, **(objects | given))
    assert (trained.folder / "config.toml").read_bytes() == before


def test_a_run_of_python_objects_is_evaluated_on_no_others(trained: Trained) -> None:
    with pytest.raises(DataError, match=r"data=\.\.\. of roost\.train or roost\.evaluate"):
        roost.evaluate(trained.folder, rewards=REWARDS)
    again = roost.evaluate(trained.folder, data=ROWS, rewards=REWARDS, eval={"prompts": 3})
    assert again.as_dict() == trained.resumed.held_out["2"]


def test_an_endless_generator(tmp_path: Path) -> None:
    def endless(start: int) -> Iterator[dict[str, Any]]:
        for a in count(start):
            yield {"prompt": f"{a}+0=", "double": a}

    result = roost.train(
        data={"source": endless, "options": {"start": 40}, "limit": 2, "prompts_per_step": 2},
        rewards={"functions": closeness, "workers": 1},
        output=str(tmp_path / "run"),
        quiet=True,
        **(SMALL | {"eval": {"prompts": 0}}),
    )
    samples = pq.read_table(result.folder / "samples/step-000001.parquet").to_pylist()
    assert {sample["prompt"] for sample in samples} == {"40+0=", "41+0="}
    assert result.held_out == {}


def generate() -> Iterator[dict[str, Any]]:
    yield from ROWS


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: ROWS, id="list"),
        pytest.param(lambda: generate, id="function"),
        pytest.param(generate, id="generator"),
        pytest.param(lambda: datasets.Dataset.from_list(ROWS), id="dataset"),
    ],
)
def test_each_kind_of_rows(
    data: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read to the last row, columns included, as a reward that needs them finds."""
    monkeypatch.setattr(api, "start_run", check_only)
    prepared: Any = roost.train(data=data(), rewards=[closeness], **SMALL)
    prompts = [*prepared.prompts.train, *prepared.prompts.held_out]
    found = sorted((prompt.columns["double"], prompt.content) for prompt in prompts)
    assert found == [(row["double"], row["prompt"]) for row in ROWS]
    assert len(prepared.prompts.held_out) == 3


def check_only(config: Any, base_dir: Path, display: Any, *, objects: Any) -> Any:
    from roost.run.prepare import prepare

    return prepare(config, base_dir, display, data=objects.data, reward_functions=objects.functions)


EVERY_SECTION: dict[str, Any] = {
    "seed": 7,
    "model": {"path": "tiny", "dtype": "float32"},
    "lora": {"rank": 3},
    "data": {"source": "problems.jsonl", "prompts_per_step": 5},
    "rollout": {"temperature": 0.5, "stop": ["\n"]},
    "rewards": [{"function": "numeric", "weight": 2.0}, "exact_match"],
    "loss": {"type": "grpo", "beta": 0.1},
    "correction": {"mode": "mask", "max": 1.5},
    "train": {"steps": 3, "method": "lora"},
    "eval": {"prompts": 9},
    "output": {"folder": "runs/x"},
    "plan": {"gpus": 2},
}


def test_the_same_fields_as_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EVERY_SECTION.keys() == roost.RunConfig.model_fields.keys()
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(EVERY_SECTION))
    configs = []
    monkeypatch.setattr(api, "start_run", lambda config, *_, **__: configs.append(config))
    roost.train(**EVERY_SECTION)
    assert configs == [load_config(tmp_path / "recipe.toml")]
    assert configs != [roost.RunConfig()]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ({"modle": "tiny"}, "'model'"),
        ({"reward": [closeness]}, "'rewards'"),
        ({"resum": "run"}, "'resume'"),
        ({"quite": True}, "'quiet'"),
        ({"steps": 5}, "'train.steps'"),
        ({"train": {"stesp": 5}}, "'steps'"),
        ({"rollout": {"generatoins": 4}}, "'generations'"),
        ({"rewards": {"functions": [closeness], "wrokers": 1}}, "'workers'"),
        ({"data": {"source": ROWS, "prompts_per_setp": 1}}, "'prompts_per_step'"),
    ],
)
def test_a_misspelt_argument_gets_the_near_name(wrong: dict[str, Any], near: str) -> None:
    [name] = wrong
    with pytest.raises(ConfigError, match=rf"{name}.*Did you mean {near}\?"):
        roost.train(**wrong)


def test_a_misspelt_argument_of_evaluate() -> None:
    with pytest.raises(ConfigError, match=r"^generation: .*Did you mean 'generations'\?"):
        roost.evaluate("tiny", generation=4)


@pytest.mark.parametrize(
    ("rewards", "error", "message"),
    [
        (5, ConfigError, r"rewards\.functions = 5: should be a list"),
        ([], ConfigError, r"rewards\.functions: is empty"),
        ([lambda completions: [0], lambda completions: [1]], ConfigError, r"giving each a `name`"),
        ([closeness, "numerics"], RewardError, r"no reward 'numerics'.*Did you mean 'numeric'"),
        ([{"function": closeness, "wieght": 2}], ConfigError, r"Did you mean 'weight'\?"),
        ([lambda completions, missing: [0.0]], RewardError, r"needs 'missing'.*there are: double"),
    ],
)
def test_rewards_that_cannot_be(rewards: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        roost.train(data=ROWS, rewards=rewards, quiet=True, **SMALL)


def test_a_function_that_cannot_travel() -> None:
    lock = threading.Lock()

    def locked(completions: list[str]) -> list[float]:
        with lock:
            return [0.0 for _ in completions]

    with pytest.raises(RewardError, match=r"'locked' cannot be sent to a worker process"):
        roost.train(data=ROWS, rewards=[locked], quiet=True, **SMALL)


def test_the_public_names() -> None:
    public = ["RoostError", "RunConfig", "__version__", "evaluate", "train"]
    assert sorted(roost.__all__) == dir(roost) == public
    assert all(getattr(roost, name) for name in roost.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        roost.trian  # noqa: B018 - it is the access that fails


def test_paths_are_as_good_as_their_texts(tmp_path: Path, trained: Trained) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    result = roost.train(
        model=trained.folder / "final",
        data=rows,
        rewards=REWARDS,
        output=tmp_path / "run",
        quiet=True,
        **{**SMALL, "eval": {"prompts": 0}},
    )
    assert result.folder == tmp_path / "run"
    config = load_config(tmp_path / "run/config.toml")
    assert config.model.path == str(trained.folder / "final")
    assert config.data.source == str(rows)


def test_a_dictionary_of_datasets_is_no_dataset() -> None:
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    with pytest.raises(ConfigError, match="a DatasetDict of the splits 'train'; give one of them"):
        roost.train(data=splits, quiet=True)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"output": "a\0b"}, r"output.folder = 'a\\x00b': holds a zero byte"),
        ({"model": "\udcff"}, r"model.path = '\\udcff': is not UTF-8 text"),
        ({"rollout": {"stop": ["\ud800"]}}, "rollout.stop.0 = .*is not UTF-8 text"),
        ({"data": {"options": {"size": {1, 2}}}}, "data.options.size = .*cannot hold a set"),
        ({"data": {"options": {"sizes": [1, None]}}}, "data.options.sizes.1 = None: config.toml"),
        (
            {"rewards": [{"function": "format", "args": {"pattern": re.compile("a")}}]},
            "rewards.functions.0.args.pattern = .*cannot hold a Pattern",
        ),
    ],
)
def test_what_config_toml_cannot_hold_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        roost.train(quiet=True, **sections)
    assert list(tmp_path.iterdir()) == []


def test_one_run_at_a_time_in_a_process(tmp_path: Path) -> None:
    """From threads, as notebooks have; what the second would load is the whole process's."""
    inside, go_on = threading.Event(), threading.Event()
    results: list[RunResult] = []

    def rows() -> Iterator[dict[str, Any]]:
        inside.set()
        assert go_on.wait(60)
        yield from ROWS

    def first() -> None:
        results.append(
            roost.train(
                data={"source": rows, "prompts_per_step": 2},
                rewards=REWARDS,
                output=str(tmp_path / "first"),
                quiet=True,
                **SMALL,
            )
        )

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    try:
        for call in (
            lambda: roost.train(output=str(tmp_path / "second"), quiet=True),
            lambda: roost.train(resume=tmp_path / "third", quiet=True),
            lambda: roost.evaluate("tiny"),
        ):
            with pytest.raises(roost.RoostError, match="a process does one at a time"):
                call()
    finally:
        go_on.set()
        thread.join(120)
    assert [result.finished for result in results] == [True]
    assert [path.name for path in tmp_path.iterdir()] == ["first"]
