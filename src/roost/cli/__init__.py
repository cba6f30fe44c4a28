"""The command line: one module a command, each with ``add_parser`` and ``run``."""

from roost.cli.main import main

__all__ = ["main"]
