"""The process of a check: ``python -m roost.gpu_check.child NAME PLACE``, the place as JSON.

It says its verdict as a probe of the doctor does, in a marked line. Whatever else goes wrong is an
exception, whose last line becomes the detail of a failed check.
"""

from __future__ import annotations

import json
import sys
import warnings
from importlib import import_module

from roost.doctor.probes.saying import say
from roost.gpu_check.registry import CHECKS
from roost.gpu_check.results import CheckFailed, Found, NotHere, Place, Verdict


def main(name: str, place: Place) -> None:
    """Run one check and say what it found."""
    warnings.simplefilter("ignore")  # Of libraries; a check fails by what it finds.
    module, _, function = CHECKS[name].runner.partition(":")
    try:
        found: Found = getattr(import_module(module), function)(place)
    except CheckFailed as failure:
        say(verdict=Verdict.FAILED, detail=str(failure))
    except NotHere as reason:
        say(verdict=Verdict.SKIPPED, detail=str(reason))
    else:
        say(verdict=Verdict.OK, detail=found.detail, figures=dict(found.figures))


if __name__ == "__main__":
    main(sys.argv[1], Place(**json.loads(sys.argv[2])))
