"""Strict reading of a parsed TOML or JSON file: each getter knows one key, and nothing else may be there.

Problems are collected, so that one message names them all. Cold path only.
"""
from __future__ import annotations

import difflib

from kvm_gpu.request import TEXT_LIMIT, is_text, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Final, NamedTuple, Optional, TypeVar

    Path = tuple[str | int, ...]
    Word = TypeVar("Word", bound=str)
else:
    from kvm_gpu.light import NamedTuple

NAMES: Final = {str: "text", int: "a number", bool: "true or false", list: "a list", dict: "a table"}


class Problem(NamedTuple):
    path: Path                      # ("wants", 0, "cards"): of the key, to find its line
    text: str                       # "wants[0].cards: expected a number, not 'two'"


def dotted(path: Path) -> str:
    """("wants", 0, "cards") -> "wants[0].cards"."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def did_you_mean(word: str, known: Collection[str]) -> str:
    """"; did you mean 'policy'?", or the choice where nothing is near."""
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean '{near[0]}'?" if near else f"; known are {', '.join(sorted(known))}" if known else ""


class Table:
    """One table of the file. A key that is absent, or null in JSON, gives the default."""

    def __init__(self, value: dict[str, Any], problems: list[Problem], path: Path = ()) -> None:
        self.path = path
        self.problems = problems
        self._value = value
        self._known: list[str] = []

    def problem(self, text: str, *keys: str | int) -> None:
        """Something is wrong with the key, or with the table itself where none is given."""
        path = (*self.path, *keys)
        self.problems.append(Problem(path, f"{dotted(path)}: {text}" if path else text))

    def names(self) -> tuple[str, ...]:
        """All keys, for a table whose keys are names that the writer chose."""
        self._known.extend(self._value)
        return tuple(self._value)

    def has(self, key: str) -> bool:
        return self._value.get(key) is not None

    def text(self, key: str, default: Optional[str] = None) -> Optional[str]:
        """One line of at most 200 printable characters."""
        value = self._take(key, str)
        if value is None:
            return default
        if not is_text(value):
            self.problem(f"expected 1 to {TEXT_LIMIT} printable characters, not {shown(value)}", key)
            return default
        return str(value)

    def word(self, key: str, words: tuple[Word, ...], default: Word) -> Word:
        value = self.text(key)
        for word in words:
            if word == (value or default):
                return word
        self.problem(f"{shown(value)} is not one of {', '.join(words)}", key)
        return default

    def number(self, key: str, low: int, high: int, default: Optional[int] = None) -> Optional[int]:
        value = self._take(key, int)
        if value is None or low <= value <= high:
            return default if value is None else int(value)
        self.problem(f"{shown(value)} is not between {low} and {high}", key)
        return default

    def flag(self, key: str) -> bool:
        return bool(self._take(key, bool))

    def texts(self, key: str) -> Optional[tuple[str, ...]]:
        return self._items(key, str)

    def numbers(self, key: str) -> Optional[tuple[int, ...]]:
        return self._items(key, int)

    def items(self, key: str) -> tuple[Any, ...]:
        """A list whose elements the caller judges."""
        return tuple(self._take(key, list) or ())

    def table(self, key: str) -> Table:
        return Table(self._take(key, dict) or {}, self.problems, (*self.path, key))

    def tables(self, key: str) -> tuple[Table, ...]:
        rows = self._items(key, dict) or ()
        return tuple(Table(row, self.problems, (*self.path, key, number)) for number, row in enumerate(rows))

    def done(self) -> None:
        """Report every key that no getter asked for."""
        where = dotted(self.path) + ": " if self.path else ""
        for key in self._value:
            if key not in self._known:
                text = f"{where}unknown key {shown(key)}{did_you_mean(key, self._known)}"
                self.problems.append(Problem((*self.path, key), text))

    def _items(self, key: str, kind: type) -> Optional[tuple[Any, ...]]:
        values = self._take(key, list)
        if values is None:
            return None
        wrong = next((value for value in values if type(value) is not kind), None)
        if wrong is not None or None in values:
            self.problem(f"expected a list, each element {NAMES[kind]}, not {shown(wrong)}", key)
            return None
        return tuple(values)

    def _take(self, key: str, kind: type) -> Any:
        self._known.append(key)
        value = self._value.get(key)
        if value is None or type(value) is kind:
            return value
        self.problem(f"expected {NAMES[kind]}, not {shown(value)}", key)
        return None
