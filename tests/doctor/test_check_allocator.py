from __future__ import annotations

from dataclasses import replace

import pytest

from roost.doctor.checks import allocator
from roost.doctor.facts import Facts, Package
from roost.doctor.findings import Level
from support.machines import PACKAGES, hgx, laptop, only

NEW_POOL = 'torch.cuda.memory._set_allocator_settings("expandable_segments:False")\n'
OLD_POOL = 'assert "expandable_segments:True" not in conf, ("Expandable segments are not ...")\n'


def machine(env: dict[str, str], pool: str | None = None) -> Facts:
    """With vLLM where its allocator's text is given."""
    if pool is None:
        return replace(hgx(), env=env)
    packages = {**PACKAGES, "vllm": Package("0.32.0")}
    files = {**hgx().files, "vllm/device_allocator/cumem.py": pool}
    return replace(hgx(), env=env, packages=packages, files=files)


@pytest.mark.parametrize(
    ("env", "pool"),
    [
        ({}, OLD_POOL),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, OLD_POOL),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, OLD_POOL),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, None),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, NEW_POOL),
    ],
)
def test_settings_that_do_no_harm_are_well(env: dict[str, str], pool: str | None) -> None:
    assert only(allocator.check(machine(env, pool))).level is Level.OK


@pytest.mark.parametrize(
    "value", ["expandable_segments:True", "max_split_size_mb:128, expandable_segments:true"]
)
def test_a_vllm_that_cannot_sleep_with_it_is_a_fault(value: str) -> None:
    found = only(allocator.check(machine({"PYTORCH_CUDA_ALLOC_CONF": value}, OLD_POOL)))
    assert found.level is Level.FAULT
    assert value in found.what


def test_the_new_name_alone_is_a_fault_as_vllm_does_not_see_it() -> None:
    env = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    found = only(allocator.check(machine(env, NEW_POOL)))
    assert found.level is Level.FAULT
    assert "looks for the setting in PYTORCH_CUDA_ALLOC_CONF alone" in found.means
    assert "set it in PYTORCH_CUDA_ALLOC_CONF" in found.do


def test_without_a_gpu_it_is_a_warning() -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    found = only(allocator.check(replace(machine(env, OLD_POOL), torch=laptop().torch)))
    assert found.level is Level.WARNING
    assert found.means.startswith("Harmless while there is no GPU.")
