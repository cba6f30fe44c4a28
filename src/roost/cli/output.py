"""What commands print: styled on a terminal, and every text as it is."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


class Printer(Console):
    """Prints to standard output; texts of models and data never count as markup.

    A reader of a pipe who leaves (``head``, ``less``) raises BrokenPipeError, as with ``print``;
    rich itself would end the process with exit code 1.
    """

    def __init__(self) -> None:
        super().__init__(highlight=False, emoji=False, markup=False)

    def say(self, *parts: str | tuple[str, str]) -> None:
        """A line of texts, each plain or ``(text, style)``, that only the terminal itself wraps."""
        self.print(Text.assemble(*parts), soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Leave it to the command line's entry point."""
        raise  # rich calls this while it handles the error
