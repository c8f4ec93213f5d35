"""oned's template syntax, read as its parser does, for what our templates use.

Source: src/parsers/template_parser.l, template_syntax.y, expr_parser.l, expr_bool.y, vm_var_syntax.y.
"""
from __future__ import annotations

import re

VALUE = re.compile(r'[ \t]*=[ \t]*("(?P<quoted>(?:\\"|[^"])*)"|(?P<plain>[^=#\s,\[\]"]+))')
VECTOR = re.compile(r"[ \t]*=[ \t]*\[\s*")
NAME = re.compile(r"\w+", re.ASCII)
BLANK = re.compile(r"(\s|#[^\n]*\n)*")
TERM = re.compile(r'\s*(?:(?P<open>\()|(?P<path>"[^"]*"|[A-Za-z]\w*)\s*(?P<operator>!=|@>|=|>|<)\s*'
                  r'(?P<value>"[^"]*"|[A-Za-z]\w*|-?\d+(?:\.\d+)?))\s*')


class Wrong(Exception):
    """oned would refuse it."""


def parse(text: str) -> list[tuple[str, object]]:
    """(name, text) for a single attribute, (name, {name: text}) for a vector, in order. Raises Wrong."""
    found: list[tuple[str, object]] = []
    at = _blank(text, 0)
    while at < len(text):
        name, at = _take(NAME, text, at)
        vector = VECTOR.match(text, at)
        value, at = _vector(text, vector.end()) if vector else _value(text, at)
        found.append((name, value))
        at = _blank(text, at)
    return found


def check_requirements(text: str) -> None:
    """Raises Wrong where SCHED_REQUIREMENTS is no expression, after $VARIABLES are filled in."""
    depth, at = 0, 0
    while True:
        found = TERM.match(text, at)
        if not found:
            raise Wrong(text[at:])
        at = found.end()
        if found["open"]:
            depth += 1
            continue
        while text[at:at + 1] == ")":
            depth -= 1
            at = _blank(text, at + 1)
        if at == len(text):
            break
        if text[at] not in "&|":
            raise Wrong(text[at:])
        at += 1
    if depth:
        raise Wrong("parentheses")


def filled_in(text: str, attributes: dict[str, str]) -> str:
    """$NAME stands for the VM's attribute."""
    return re.sub(r"\$(\w+)", lambda name: attributes.get(name[1].upper(), ""), text)


def _vector(text: str, at: int) -> tuple[dict[str, str], int]:
    values: dict[str, str] = {}
    while True:
        name, at = _take(NAME, text, at)
        values[name], at = _value(text, at)
        at = _blank(text, at)
        if text[at:at + 1] == "]":
            return values, at + 1
        if text[at:at + 1] != ",":
            raise Wrong(text[at:])
        at = _blank(text, at + 1)


def _value(text: str, at: int) -> tuple[str, int]:
    found = VALUE.match(text, at)
    if not found:
        raise Wrong(text[at:])
    quoted = found["quoted"]
    return (found["plain"] if quoted is None else quoted.replace('\\"', '"')), found.end()


def _take(pattern: re.Pattern[str], text: str, at: int) -> tuple[str, int]:
    found = pattern.match(text, at)
    if not found:
        raise Wrong(text[at:])
    return found[0], found.end()


def _blank(text: str, at: int) -> int:
    found = BLANK.match(text, at)
    return found.end() if found else at
