from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import pytest

from roost.doctor.ask import Question, ask
from roost.doctor.checks import parts
from roost.doctor.facts import Answer, Facts, Package
from roost.doctor.findings import Level
from roost.doctor.probes import parts as probes
from support.machines import PACKAGES, hgx, levels, said

WORKS = {
    "math-verify": said("math-verify", {"works": "told 1/2 from 0.3"}),
    "reasoning-gym": said("reasoning-gym", {"works": "made a task"}),
}


def machine(answers: Mapping[str, Answer]) -> Facts:
    packages = {**PACKAGES, **{name: Package("1.0") for name in answers}}
    return replace(hgx(), packages=packages, parts=answers)


def test_parts_that_work_are_one_line_and_those_absent_another() -> None:
    found = parts.check(machine(WORKS))
    assert levels(found) == [Level.OK, Level.OK]
    assert found[0].what == ("work: math-verify (told 1/2 from 0.3), reasoning-gym (made a task)")
    assert found[1].data["absent"] == ["bitsandbytes", "tensorboard", "trackio", "wandb", "vllm"]


def test_a_part_that_could_not_be_tried_says_why() -> None:
    idle = said("bitsandbytes", {"idle": "its 8-bit optimizer needs a GPU"})
    found = parts.check(machine({**WORKS, "bitsandbytes": idle}))
    assert levels(found) == [Level.OK, Level.OK]
    assert "bitsandbytes (installed, not tried: its 8-bit optimizer needs a GPU)" in found[0].what


@pytest.mark.parametrize(
    "problem",
    [
        "ended with exit code 1: ImportError: vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda",
        "did not answer within 120 s and was killed",
        "was ended by signal 11",
    ],
)
def test_a_part_that_is_installed_and_fails_is_a_fault(problem: str) -> None:
    found = parts.check(machine({**WORKS, "vllm": said("vllm", problem=problem)}))
    assert levels(found)[-1] is Level.FAULT
    assert found[-1].what == f"vllm is installed, but does not work: its trial {problem}"


def test_a_part_that_comes_with_roost_must_be_there() -> None:
    found = parts.check(machine({"reasoning-gym": WORKS["reasoning-gym"]}))
    assert levels(found) == [Level.OK, Level.OK, Level.FAULT]
    assert found[-1].what == "math-verify is not installed"


def test_every_part_has_a_trial() -> None:
    assert probes.PROBES.keys() == parts.PARTS.keys()


def trial(name: str, before: str = "") -> Answer:
    """A part's trial in a process of its own, with something done to it before."""
    code = f"{before}\nfrom roost.doctor.probes.parts import main\nmain({name!r})"
    path = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    return ask(Question(name, [sys.executable, "-c", code], 120.0, path))


@pytest.mark.parametrize("name", ["math-verify", "reasoning-gym"])
def test_parts_that_come_with_roost_work_here(name: str) -> None:
    answer = trial(name)
    assert answer.problem == ""
    assert "works" in answer.last()


def test_a_verifier_that_accepts_all_is_found_out() -> None:
    answer = trial("math-verify", "import math_verify; math_verify.verify = lambda *a, **k: True")
    assert answer.last() == {}
    assert "score [1.0, 1.0], not [1.0, 0.0]" in answer.problem


def test_a_tracker_that_records_nothing_is_found_out() -> None:
    before = (
        "import sys, types\n"
        "nothing = lambda *a, **k: None\n"
        "sys.modules['wandb'] = types.SimpleNamespace(init=nothing, log=nothing, finish=nothing)"
    )
    assert "PartBroken: it wrote no file" in trial("wandb", before).problem


def test_a_vllm_for_another_kind_of_machine_is_found_out() -> None:
    before = (
        "import sys, types\n"
        "sys.modules['vllm'] = types.ModuleType('vllm')\n"
        "platform = types.SimpleNamespace(device_type='tpu')\n"
        "sys.modules['vllm.platforms'] = types.SimpleNamespace(current_platform=platform)"
    )
    assert "its platform is 'tpu'" in trial("vllm", before).problem
