"""``roost eval`` against counts that the tests make themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from roost.config.loading import parse_overrides
from roost.run.evaluate_model import config_for_model
from support.commands import run, succeed
from support.desk import Desk
from support.tiny_runs import TinyRun

WITNESS = '''
import json
from pathlib import Path

def witness(prompts, completions, completion_ids, finish_reasons, worth=0.0):
    """Writes down what it sees; worth nothing."""
    with Path(__file__).with_name("seen.jsonl").open("a") as file:
        for row in zip(prompts, completions, completion_ids, finish_reasons, strict=True):
            file.write(json.dumps(row) + chr(10))
    return [worth for _ in completions]
'''
ON_THE_TASK = ["--data", "arithmetic", "--prompts", "10", "--set", "rewards.workers=1"]


def seen(desk: Desk) -> list[tuple[str, str, list[int], str]]:
    return [tuple(json.loads(line)) for line in (desk.root / "seen.jsonl").read_text().splitlines()]


def right(prompt: str, completion: str) -> bool:
    """Whether a completion ends in the answer."""
    a, sign, b = re.fullmatch(r"(\d+)([+-])(\d+)=", prompt).groups()  # type: ignore[union-attr]
    numbers = re.findall(r"-?\d+", completion)
    answer = int(a) + int(b) if sign == "+" else int(a) - int(b)
    return bool(numbers) and int(numbers[-1]) == answer


def test_prompts_that_are_too_long_are_said_to_programs_too(desk: Desk) -> None:
    rows = [*desk.problems(4), {"prompt": "1+" * 40 + "1=", "answer": 41}]
    data = ["--data", desk.rows(rows), "--set", "data.max_prompt_tokens=20"]
    said = succeed("eval", "tiny", *data, "--json")
    assert said.error == "warning: data    1 left out: longer than 20 tokens\n"
    assert said.json["prompts"] == 4


def test_the_figures_are_those_of_what_was_sampled(desk: Desk) -> None:
    desk.write("mine.py", WITNESS)
    budget = ["--set", "rollout.max_completion_tokens=4"]
    rewards = ["--reward", "numeric", "--reward", "mine.py:witness"]
    said = succeed("eval", "tiny", *ON_THE_TASK, *budget, *rewards, "-k", "4", "--json")
    assert said.error == ""

    rows = seen(desk)
    assert len(rows) == 40
    passes: dict[str, list[bool]] = {}
    for prompt, completion, _, _ in rows:
        passes.setdefault(prompt, []).append(right(prompt, completion))
    assert [len(group) for group in passes.values()] == [4] * 10
    share = sum(map(sum, passes.values())) / 40
    assert 0 < share < 1
    truncated = sum(reason == "length" for _, _, _, reason in rows) / 40
    assert 0 < truncated < 1
    assert said.json == {
        "prompts": 10,
        "generations": 4,
        "reward": pytest.approx(share),
        "pass_at_1": pytest.approx(share),
        "pass_at_k": pytest.approx(sum(map(any, passes.values())) / 10),
        "mean_length": pytest.approx(sum(len(ids) for _, _, ids, _ in rows) / 40),
        "truncated": pytest.approx(truncated),
        "unscored": 0,
    }


def test_what_a_person_reads_with_a_bound_of_their_own(desk: Desk) -> None:
    """Sums are worth 0.5 and pass at 0.5, differences 0.25 and do not."""
    desk.write(
        "mine.py",
        "def half(completions, prompts):\n"
        "    return [0.5 if '+' in prompt else 0.25 for prompt in prompts]\n"
        f"{WITNESS}",
    )
    rewards = ["--reward", "mine.py:half", "--reward", "mine.py:witness"]
    said = succeed("eval", "tiny", *ON_THE_TASK, *rewards, "-k", "2", "--pass-reward", "0.5").output
    rows = seen(desk)
    sums = sum("+" in prompt for prompt, *_ in rows) / 20
    assert 0 < sums < 1
    length = sum(len(ids) for _, _, ids, _ in rows) / 20
    assert said.splitlines() == [
        f"reward   {0.25 + 0.25 * sums:.3f}",
        f"pass@1   {sums:.3f}",
        f"pass@2   {sums:.3f}",
        f"length   {length:.1f} tokens, 0.0% out of budget",
        "on       10 prompts x 2, 0 unscored",
    ]


def test_a_run_is_its_newest_checkpoint_on_its_held_out_prompts(
    desk: Desk, full_run: TinyRun
) -> None:
    """As it was evaluated in training, and as its final model alone is."""
    held_out = full_run.result.held_out
    assert held_out["0"] != held_out["2"], "else the test could not tell the two models apart"
    assert succeed("eval", desk.run(), "--json").json == held_out["2"]
    task = ["--set", "data.options.size=60", "--set", "rollout.max_completion_tokens=6"]
    alone = ["eval", "run/final", "--data", "arithmetic", "--reward", "numeric", "--prompts", "6"]
    assert succeed(*alone, *task, "--json").json == held_out["2"]


def test_a_run_on_other_prompts_and_rewards(desk: Desk) -> None:
    desk.write("mine.py", WITNESS.replace("worth=0.0", "worth=1.0"))
    desk.rows(desk.problems(3), "other.jsonl")
    given = ["--data", desk.root / "other.jsonl", "--set", "data.options={}", "--json"]
    result = succeed("eval", desk.run(), *given, "--reward", desk.root / "mine.py:witness").json
    assert (result["prompts"], result["reward"]) == (3, 1.0)
    assert sorted(prompt for prompt, *_ in seen(desk)) == ["0+1=", "1+1=", "2+1="]


def test_a_run_killed_before_its_first_checkpoint_is_its_starting_model(
    desk: Desk, full_run: TinyRun
) -> None:
    run_folder = Path(desk.run())
    for path in (run_folder / "checkpoints").rglob("*"):
        if path.is_file():
            path.unlink()
    (run_folder / "checkpoints/step-2").rmdir()
    assert succeed("eval", run_folder, "--json").json == full_run.result.held_out["0"]


FAILING = "def fails(completions, prompts):\n    raise ValueError('no ' + prompts[0])\n"


def test_rewards_that_all_fail_say_why(desk: Desk) -> None:
    desk.write("bad.py", FAILING)
    said = run("eval", "tiny", *ON_THE_TASK, "--reward", "bad.py:fails", "--json")
    assert (said.code, said.output) == (2, "")
    assert "none of the 10 samples that were sampled could be scored" in said.error
    assert re.search(r"ValueError: no \d+[+-]\d+=", said.error)


def test_rewards_that_fail_at_times_are_counted_and_shown(desk: Desk) -> None:
    desk.write("bad.py", FAILING.replace("raise", "if '+' in prompts[0]: return [1.0]\n    raise"))
    said = succeed("eval", "tiny", *ON_THE_TASK, "--reward", "bad.py:fails")
    [count] = re.findall(r"(\d+) unscored", said.output)
    assert 0 < int(count) < 10
    assert "reward   1.000" in said.output
    assert said.error.count("ValueError: no ") == 1


def test_the_tiny_model_alone_is_on_the_quickstarts_task_one_field_changed_or_not() -> None:
    def config(*overrides: str) -> Any:
        return config_for_model("tiny", parse_overrides(overrides), Path.cwd()).config

    plain, changed = config(), config("rollout.temperature=0.5", "eval.prompts=3")
    assert plain.rollout.max_completion_tokens == 16
    assert (plain.data.source, plain.eval.prompts) == ("arithmetic", 256)
    assert changed.rollout == plain.rollout.model_copy(update={"temperature": 0.5})
    assert changed.eval == plain.eval.model_copy(update={"prompts": 3})
    assert config("model.dtype=bfloat16").model.dtype == "bfloat16"


def test_files_named_with_the_command_are_those_of_the_working_directory(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever lies under the same name beside the run's recipe."""
    run_folder = desk.root / desk.run()
    here = desk.root / "elsewhere"
    desk.rows(desk.problems(3), "elsewhere/mine.jsonl")
    desk.write("elsewhere/mine.py", "def full(completions): return [1.0 for _ in completions]\n")
    desk.rows(desk.problems(9), "mine.jsonl")
    desk.write("mine.py", "def full(completions): return [0.0 for _ in completions]\n")
    desk.change_json("run/environment.json", {"base_dir": str(desk.root)})
    monkeypatch.chdir(here)
    given = ["--data", "mine.jsonl", "--reward", "mine.py:full", "--set", "data.options={}"]
    result = succeed("eval", run_folder, *given, "--prompts", "9", "--json").json
    assert (result["prompts"], result["reward"]) == (3, 1.0)
