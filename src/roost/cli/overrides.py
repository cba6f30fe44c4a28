"""The ``--set`` option, which several commands share."""

from __future__ import annotations

import argparse


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Declare ``--set``."""
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="SECTION.FIELD=VALUE",
        action="append",
        default=[],
        help="set a field of the configuration; may be given more than once",
    )
