"""Tables for people, drawn by rich, which is imported when there is one to draw."""
from __future__ import annotations

import posix
import sys

from kvm_gpu.errors import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

GAP: Final = 2              # between columns
UNLIMITED: Final = 10_000   # for pipes
SENTENCE: Final = 32


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]], empty: str, rare: tuple[str, ...] = ()) -> str:
    """The rows below their head, or the sentence `empty`. Columns named in `rare` are left out where no row says
    anything there. Raises HostError where rich is not installed."""
    columns = [(name, cells) for name, cells in zip(head, zip(*rows, strict=True), strict=False)
               if name not in rare or any(cells)]
    return _draw(columns) if columns else empty + "\n"


def _draw(columns: list[tuple[str, tuple[object, ...]]]) -> str:
    if sys.flags.no_site:       # the entry script runs without site; from here on time matters less
        import site
        site.main()
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        raise HostError("tables need the Python package rich", "apt install python3-rich, or use --json") from None
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    terminal, needed = _is_terminal(), 0
    for name, cells in columns:
        numbers = all(cell is None or isinstance(cell, int) for cell in cells)
        narrowest = _narrowest((name, *map(_cell, cells)))
        made.add_column(name, justify="right" if numbers else "left", overflow="fold",
                        min_width=narrowest if terminal else None)
        needed += narrowest + GAP
    for row in zip(*(cells for _, cells in columns), strict=True):
        made.add_row(*map(_cell, row))
    console = Console(force_terminal=terminal, markup=False, highlight=False, emoji=False)
    console.width = max(console.width, needed) if terminal else UNLIMITED
    with console.capture() as drawn:
        console.print(made)
    return "".join(line.rstrip() + "\n" for line in drawn.get().splitlines())


def _is_terminal() -> bool:
    """Whether lines are to fit somebody's window. rich takes every dumb terminal to be 80 columns wide and cuts."""
    from os import environ
    return posix.isatty(1) and environ.get("TERM") not in ("dumb", "unknown")


def _narrowest(cells: tuple[str, ...]) -> int:
    """Columns that these need: no word is broken, an address least of all, and a sentence keeps some room. A terminal
    that is narrower still breaks the lines itself."""
    words = max(len(word) for cell in cells for word in cell.split(" "))
    return max(words, min(SENTENCE, max(map(len, cells))))


def _cell(value: object) -> str:
    """Control characters in names that users chose must not reach a terminal."""
    if value is None or value == "":
        return "-"
    return "".join(character if character.isprintable() else "?" for character in str(value))
