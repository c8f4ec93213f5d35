"""Folders, links and files with their path rules. What a file says or does is given by whoever puts it there."""
from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from errno import EACCES, EISDIR, ELOOP, ENOENT, ENOTDIR
from typing import Union

MAX_LINKS = 40      # as in fs/namei.c


def refuse(errno: int, what: str) -> OSError:
    return OSError(errno, os.strerror(errno), what)


class File:
    """`show` is the text or makes it, None: write-only. `store` takes what is written, None: read-only.
    `looked` is called by each read from outside, not by a snapshot."""
    __slots__ = ("looked", "show", "store")

    def __init__(self, show: Show, store: Store = None, looked: Callable[[], None] | None = None) -> None:
        self.show = show
        self.store = store
        self.looked = looked

    @property
    def mode(self) -> int:
        return (0o444 if self.show is not None else 0) | (0o200 if self.store else 0)

    def content(self) -> bytes:
        """Raises OSError as the attribute's show function does; EACCES where there is none."""
        if self.show is None:
            raise refuse(EACCES, "write-only")
        text = self.show() if callable(self.show) else self.show
        return text if isinstance(text, bytes) else text.encode() + b"\n"


class Link:
    __slots__ = ("target",)

    def __init__(self, target: str) -> None:
        self.target = target


class CharDevice:
    """A node of /dev that can be opened by one user at a time."""
    __slots__ = ("group",)

    def __init__(self, group: int) -> None:
        self.group = group


class Folder(dict[str, "Node"]):
    pass


Text = Union[str, bytes]
Show = Union[Text, Callable[[], Text], None]
Store = Union[Callable[[str], None], None]
Node = Union[File, Link, CharDevice, Folder]


class Tree:
    def __init__(self) -> None:
        self.root = Folder()

    def resolve(self, path: str, follow: bool = True) -> tuple[str, Node]:
        """Canonical path and node; the last part stays a link without `follow`. Raises OSError."""
        trail: list[tuple[str, Node]] = [("", self.root)]
        parts = path.split("/")[::-1]
        links = 0
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del trail[1 if len(trail) == 1 else -1:]
                continue
            node = _step(trail[-1][1], part, path)
            if isinstance(node, Link) and (parts or follow):
                links += 1
                if links > MAX_LINKS:
                    raise refuse(ELOOP, path)
                if node.target.startswith("/"):
                    del trail[1:]
                parts.extend(node.target.split("/")[::-1])
            else:
                trail.append((part, node))
        return "/".join(name for name, _ in trail) or "/", trail[-1][1]

    def file(self, path: str) -> File:
        node = self.resolve(path)[1]
        if isinstance(node, Folder):
            raise refuse(EISDIR, path)
        return node if isinstance(node, File) else File("")

    def folder(self, path: str) -> Folder:
        """The folder at a canonical path, made with its parents where missing."""
        here = self.root
        for part in path.strip("/").split("/"):
            below = here.setdefault(part, Folder())
            assert isinstance(below, Folder), f"{path}: {part} is no folder"
            here = below
        return here

    def put(self, path: str, node: Node) -> None:
        folder, _, name = path.rpartition("/")
        self.folder(folder)[name] = node

    def link(self, at: str, to: str) -> None:
        """A relative link as the kernel makes them: sysfs_create_link."""
        self.put(at, Link(posixpath.relpath(to, posixpath.dirname(at))))

    def drop(self, path: str) -> None:
        folder, _, name = path.rpartition("/")
        self.folder(folder).pop(name, None)

    def walk(self, path: str = "") -> Iterator[tuple[str, Node]]:
        """Everything below a canonical path, each folder before its content, links not followed."""
        start = self.resolve(path)[1]
        assert isinstance(start, Folder)
        for name, node in sorted(start.items()):
            yield f"{path}/{name}", node
            if isinstance(node, Folder):
                yield from self.walk(f"{path}/{name}")


def _step(here: Node, part: str, path: str) -> Node:
    if not isinstance(here, Folder):
        raise refuse(ENOTDIR, path)
    if part not in here:
        raise refuse(ENOENT, path)
    return here[part]
