"""Domain XML as a tree of byte offsets, and edits by these offsets: every byte that is not edited stays.

The text is written by a VM's owner and read by root: size, depth and number of elements are bounded, and only
UTF-8 without a DOCTYPE is read, so that no two parsers can see two documents in it.
"""
from __future__ import annotations

from pyexpat import ExpatError, ParserCreate

from kvm_gpu.errors import RequestError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Final, NamedTuple, Optional

    Attributes = tuple[tuple[str, str], ...]
    Edit = tuple[int, int, bytes]       # bytes [start, end) become the text
else:
    from kvm_gpu.light import NamedTuple

    Attributes = Edit = object

BYTES: Final = 1 << 20
DEPTH: Final = 32
ELEMENTS: Final = 16384
MARGIN: Final = 64
SPACE: Final = b" \t\r\n"
QEMU: Final = "http://libvirt.org/schemas/domain/qemu/1.0"
OURS: Final = "urn:kvm-gpu:domain:1"
PREFIXES: Final = {QEMU: "qemu", OURS: "kvm-gpu"}


class Element:
    """One element of a document. Bytes [start, after) are all of it, `end` is where its end tag begins."""
    __slots__ = ("name", "attributes", "text", "children", "start", "end", "after", "self_closing")

    def __init__(self, name: str, attributes: dict[str, str], start: int) -> None:
        self.name = name                # "vcpu"; "urn:kvm-gpu:domain:1 claim" in a namespace
        self.attributes = attributes
        self.text = ""                  # up to the first child
        self.children: list[Element] = []
        self.start = start
        self.end = self.after = start
        self.self_closing = False

    def all(self, *path: str) -> list[Element]:
        """Elements at a path, in document order, also where a container stands twice (`<devices>` may)."""
        found = [self]
        for name in path:
            found = [child for element in found for child in element.children if child.name == name]
        return found

    def first(self, *path: str) -> Optional[Element]:
        found = self.all(*path)
        return found[0] if found else None

    def value(self, *path: str) -> Optional[str]:
        """Text of the first element at a path, None where there is none. Raises RequestError where it is not plain."""
        element = self.first(*path)
        if element is not None and element.children:
            raise RequestError(f"domain XML: <{path[-1]}> has elements inside")
        return element.text if element else None


class New(NamedTuple):
    """An element to write."""
    name: str
    attributes: Attributes = ()
    children: tuple[New, ...] = ()
    text: str = ""


def parse(xml: bytes) -> Element:
    """The root element. Raises RequestError on anything that is not small, plain, well-formed UTF-8 XML."""
    if len(xml) > BYTES:
        raise RequestError(f"domain XML: {len(xml)} bytes, at most {BYTES} are read")
    if b"\0" in xml or xml.lstrip()[:1] != b"<":        # UTF-16 and byte order marks, which expat would accept
        raise RequestError("domain XML: not UTF-8 text that begins with an element")
    reader = _Reader(xml)
    try:
        reader.parser.Parse(xml, True)
    except ExpatError as error:
        raise RequestError(f"domain XML: {error}") from None
    return reader.root


class _Reader:
    """Builds the tree from expat's events."""

    def __init__(self, xml: bytes) -> None:
        self.xml = xml
        self.elements = 0
        self.open: list[Element] = []
        self.parser = parser = ParserCreate("UTF-8", " ")
        parser.buffer_text = True
        parser.XmlDeclHandler = self.declaration
        parser.StartDoctypeDeclHandler = self.doctype
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.text

    def declaration(self, version: str, encoding: Optional[str], standalone: int) -> None:
        if encoding is not None and encoding.lower() != "utf-8":
            raise RequestError(f"domain XML: encoding {encoding[:20]!r}, only UTF-8 is read")

    def doctype(self, *_: object) -> None:
        raise RequestError("domain XML: has a DOCTYPE")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.elements += 1
        if len(self.open) == DEPTH or self.elements > ELEMENTS:
            raise RequestError(f"domain XML: over {DEPTH} levels or {ELEMENTS} elements")
        element = Element(name, attributes, self.parser.CurrentByteIndex)
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)

    def text(self, text: str) -> None:
        if not self.open[-1].children:
            self.open[-1].text += text

    def end(self, name: str) -> None:
        element, at = self.open.pop(), self.parser.CurrentByteIndex
        # behind <a/> expat reports the end of the tag, else the beginning of </a>
        if not element.children and not element.text and self.xml[at - 2:at] == b"/>":
            element.end, element.after, element.self_closing = at - 2, at, True
        else:
            element.end, element.after = at, self.xml.index(b">", at) + 1


# ---- writing ---------------------------------------------------------------------------------------

def render(new: New, margin: str = "") -> str:
    """The XML of an element, with `margin`, a line's end and indentation, before it. A namespace is declared on the
    spot."""
    uri, _, name = new.name.rpartition(" ")
    attributes = new.attributes
    if uri:
        name, attributes = f"{PREFIXES[uri]}:{name}", ((f"xmlns:{PREFIXES[uri]}", uri), *attributes)
    tag = f"{margin}<{name}" + "".join([f" {key}='{escape(value)}'" for key, value in attributes])
    if new.children:
        inside = "".join([render(child, deeper(margin)) for child in new.children])
        return f"{tag}>{inside}{margin}</{name}>"
    return f"{tag}>{escape(new.text)}</{name}>" if new.text else f"{tag}/>"


def escape(text: str) -> str:
    """Text for an attribute in single quotes, or between tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&apos;")


def insert(xml: bytes, element: Element, news: Iterable[New]) -> Edit:
    """Put elements behind the last child of `element`, in lines as it stands. `<cputune/>` is opened."""
    if element.children:
        last = element.children[-1]
        outer, margin, at = "", _margin(xml, last), last.after
    else:
        outer = _margin(xml, element)
        margin, at = deeper(outer), _body(xml, element)
    content = "".join([render(new, margin) for new in news])
    if not element.self_closing:
        return at, at, content.encode()
    name = xml[element.start + 1:element.end].split(maxsplit=1)[0].decode()
    return element.end, element.after, f">{content}{outer}</{name}>".encode()


def close(xml: bytes, element: Element) -> Edit:
    """Undo the opening by `insert`: `<cputune>...</cputune>` becomes `<cputune/>`."""
    return _body(xml, element) - 1, element.after, b"/>"


def cut(xml: bytes, element: Element) -> Edit:
    """Undo `insert`: the element goes, and the space before it."""
    return len(xml[:element.start].rstrip(SPACE)), element.after, b""


def rest(xml: bytes, element: Element, gone: Collection[Element]) -> bytes:
    """What stays between the element's tags when some of its children go."""
    begin = _body(xml, element)
    cuts = [cut(xml, child) for child in element.children if child in gone]
    return splice(xml[begin:element.end], [(start - begin, end - begin, text) for start, end, text in cuts])


def deeper(margin: str) -> str:
    return margin and margin + ("\t" if "\t" in margin else "  ")


def splice(xml: bytes, edits: Iterable[Edit]) -> bytes:
    """Apply edits that do not overlap; those at one place in the order given."""
    out: list[bytes] = []
    at = 0
    for start, end, text in sorted(edits, key=lambda edit: edit[0]):
        out += (xml[at:start], text)
        at = end
    return b"".join(out) + xml[at:]


def _margin(xml: bytes, element: Element) -> str:
    """Line's end and indentation before an element; empty where it does not begin a line."""
    before = xml[max(element.start - MARGIN, 0):element.start]
    space = before[len(before.rstrip(SPACE)):]
    line = space.rfind(b"\n")
    return "" if line < 0 else ("\r" if b"\r" in space else "") + space[line:].decode()


def _body(xml: bytes, element: Element) -> int:
    """Offset behind the start tag; a '>' inside quotes does not end it."""
    if element.self_closing:
        return element.after
    quote = 0
    for at in range(element.start, element.end):
        byte = xml[at]
        if quote:
            quote = 0 if byte == quote else quote
        elif byte in b"'\"":
            quote = byte
        elif byte == 0x3e:
            return at + 1
    raise AssertionError("an element has a start tag")
