from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import roost
from roost.cli.main import COMMANDS, EXIT_ERROR, EXIT_INTERRUPTED
from roost.errors import DataError
from support.commands import run, succeed
from support.tiny_runs import TinyRun

DOCS = Path(__file__).parents[2] / "docs"


def test_version() -> None:
    assert succeed("--version").output == f"roost {roost.__version__}\n"


def test_help_names_every_command_and_each_has_help() -> None:
    overview = succeed("--help").output
    for name in COMMANDS:
        assert re.search(rf"^ +{name} +\w", overview, re.MULTILINE)
        assert f"usage: roost {name}" in succeed(name, "--help").output


def test_every_module_of_a_command_is_a_command() -> None:
    folder = Path(roost.__file__).parent / "cli"
    with_parsers = {p.stem for p in folder.glob("*.py") if "def add_parser(" in p.read_text()}
    assert with_parsers == set(COMMANDS)


def make_fail(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr(import_module("roost.cli.config"), "run", fail)


def test_an_error_is_one_message_and_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    make_fail(monkeypatch, DataError("data.source = 'x': is empty."))
    said = run("config")
    assert (said.code, said.output) == (2, "")
    assert said.error == "error: data.source = 'x': is empty.\n"


def test_a_stop_at_once_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    make_fail(monkeypatch, KeyboardInterrupt())
    said = run("config")
    assert (said.code, said.output, said.error) == (130, "", "interrupted\n")


def test_a_fault_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    make_fail(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run("config")


def test_exit_codes_are_those_that_the_docs_list() -> None:
    table = (DOCS / "runs.md").read_text().partition("| exit code |")[2].partition("\n\n")[0]
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)]
    assert listed == [0, EXIT_ERROR, EXIT_INTERRUPTED]


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f'roost() {{ "{sys.executable}" -m roost "$@"; }}\n{command}'],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )


def test_the_process_ends_with_the_exit_code() -> None:
    done = shell("roost config rolout")
    assert done.returncode == 2
    assert done.stderr.startswith("error: no section or field 'rolout'")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("roost config | head -n 1", id="listing"),
        pytest.param("roost config seed --json | true", id="little-output"),
    ],
)
def test_a_reader_that_leaves_early_is_no_error(command: str) -> None:
    done = shell(f'{command}; echo "codes ${{PIPESTATUS[*]}}"')
    assert done.stdout.endswith("codes 0 0\n")
    assert done.stderr == ""


def outside(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A shell command in which ``roost`` is ours."""
    ours = f"{shlex.quote(sys.executable)} -m roost"
    return subprocess.run(
        ["sh", "-c", f'roost() {{ {ours} "$@"; }}; {command}'],
        cwd=folder,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment},
        timeout=120,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_locale_without_unicode_loses_letters_and_not_the_command(
    full_run: TinyRun, tmp_path: Path, encoding: str
) -> None:
    shutil.copytree(full_run.folder.root, tmp_path / "run")
    language = {
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONIOENCODING": encoding,
    }
    shown = outside("roost show run --metric reward", tmp_path, **language)
    assert shown.returncode == 0, shown.stderr
    assert b"reward" in shown.stdout
    planned = outside("roost plan --model Qwen3-32B --gpu H100 --gpus 2", tmp_path, **language)
    assert b"Traceback" not in planned.stderr
    assert planned.stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_cost_what_is_printed_and_nothing_else(tmp_path: Path, closed: str) -> None:
    assert outside(f"roost config train {closed}", tmp_path).returncode == 0
    assert outside(f"roost config trian {closed}", tmp_path).returncode == EXIT_ERROR


@pytest.mark.slow
def test_a_run_without_streams_prints_into_none_of_its_files(tmp_path: Path) -> None:
    sizes = "--set train.steps=1 --set eval.prompts=0 --set rollout.generations=2"
    done = outside(f"roost train {sizes} --output run <&- >&- 2>&-; echo $? > code", tmp_path)
    assert (tmp_path / "code").read_text() == "0\n", done.stderr
    assert (tmp_path / "run/.lock").read_text().isdecimal()
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "run/final/model.safetensors").exists()
