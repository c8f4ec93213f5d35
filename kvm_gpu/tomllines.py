"""Line numbers of the keys of a TOML text, which tomllib does not give. Cold path only.

Source of the grammar: https://toml.io/en/v1.0.0. The text must have passed tomllib: nothing is checked here.
"""
from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final, NamedTuple

    from kvm_gpu.strict import Path
else:
    from kvm_gpu.light import NamedTuple

TOKEN: Final = re.compile(r"""
    (?P<skip> [ \t\r]+ | \#[^\n]* )
  | (?P<text> \"\"\"(?:\\.|[^\\])*?\"{3,5} | '''.*?'{3,5} | \"(?:\\.|[^\"\\\n])*\" | '[^'\n]*' )
  | (?P<mark> [\n\[\]{}=,.] )
  | (?P<bare> [^\s\[\]{}=,.\"'\#]+ )
""", re.VERBOSE | re.DOTALL)
END: Final = "end"


class Token(NamedTuple):
    kind: str                       # "text", "bare", END, or the mark itself
    text: str
    line: int


def tokens(source: str) -> Iterator[Token]:
    line = 1
    for match in TOKEN.finditer(source):
        kind, text = match.lastgroup or "", match[0]
        if kind != "skip":
            yield Token(text if kind == "mark" else kind, text, line)
        line += text.count("\n")
    yield Token(END, "", line)


def depth(source: str) -> int:
    """Deepest nesting that the text can reach by brackets or by one dotted key, without parsing it."""
    deepest = brackets = parts = 0
    before = END
    for token in tokens(source):
        brackets += (token.kind in "[{") - (token.kind in "]}")
        parts = parts + 1 if token.kind == "." else parts if before == "." else 0
        deepest = max(deepest, brackets, parts)
        before = token.kind
    return deepest


def lines(source: str) -> dict[Path, int]:
    """{("cpus", "dedicated"): 7, ("card", 0): 9, ...}: the line on which each key, table and list element begins."""
    return _Scanner(source).lines


class _Scanner:
    """Walks a valid text once. `lines` has the first line of every path; `_numbers` counts [[tables]]."""

    def __init__(self, source: str) -> None:
        self.lines: dict[Path, int] = {}
        self._tokens = tokens(source)
        self._now = next(self._tokens)
        self._numbers: dict[Path, int] = {}
        table: Path = ()
        while self._now.kind != END:
            if self._now.kind == "\n":
                self._next()
            elif self._now.kind == "[":
                table = self._header()
            else:
                self._pair(table)

    def _next(self) -> Token:
        token, self._now = self._now, next(self._tokens, self._now)
        return token

    def _header(self) -> Path:
        """[a.b] or [[a.b]]; parts that name a list of tables mean its newest element."""
        line = self._next().line
        listed = self._now.kind == "["
        if listed:
            self._next()
        path: Path = ()
        parts = self._key()
        for number, part in enumerate(parts):
            path = (*path, part)
            if listed and number == len(parts) - 1:
                self._numbers[path] = self._numbers.get(path, -1) + 1
            self.lines.setdefault(path, line)
            if path in self._numbers:
                path = (*path, self._numbers[path])
        while self._now.kind == "]":
            self._next()
        self.lines.setdefault(path, line)
        return path

    def _key(self) -> tuple[str, ...]:
        parts = [_unquoted(self._next().text)]
        while self._now.kind == ".":
            self._next()
            parts.append(_unquoted(self._next().text))
        return tuple(parts)

    def _pair(self, table: Path) -> None:
        line = self._now.line
        path = table
        for part in self._key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self._next()                # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        if self._now.kind == "[":
            self._elements(path)
        elif self._now.kind == "{":
            self._next()
            while self._next_is_pair():
                self._pair(path)
        else:
            while self._now.kind in ("text", "bare", "."):     # 1.5 and dates are several tokens
                self._next()

    def _elements(self, path: Path) -> None:
        self._next()
        number = 0
        while self._now.kind != "]":
            if self._now.kind in ("\n", ","):
                self._next()
            else:
                self.lines[(*path, number)] = self._now.line
                self._value((*path, number))
                number += 1
        self._next()

    def _next_is_pair(self) -> bool:
        while self._now.kind in ("\n", ","):
            self._next()
        if self._now.kind == "}":
            self._next()
            return False
        return True


def _unquoted(key: str) -> str:
    """Escapes in quoted keys stay as they are: such a key then has no line, which costs a number in a message."""
    return key[1:-1] if key[0] in "\"'" else key
