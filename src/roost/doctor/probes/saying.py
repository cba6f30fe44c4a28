"""How a probe speaks to the doctor: a marked line of JSON, at once."""

from __future__ import annotations

import json
from typing import Any

from roost.doctor.facts import MARK


def say(**fields: Any) -> None:
    """Say one line."""
    print(f"{MARK}{json.dumps(fields)}", flush=True)
