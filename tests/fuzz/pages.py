"""What a page may consist of: the report's own elements and nothing that runs or is fetched."""

from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

_HTML = (
    "html", "head", "meta", "title", "style", "body", "main", "p", "h1", "h2", "h3", "b", "ul", "li", "div",
    "table", "thead", "tbody", "tr", "th", "td", "wbr", "pre", "details", "summary", "figure", "figcaption",
    "dl", "dt", "dd", "img",
)  # fmt: skip
_SVG = (
    "svg", "g", "path", "text", "tspan", "title", "use", "defs", "clippath", "rect", "image", "lineargradient", "stop",
    "style", "metadata", "rdf", "work", "type", "format",
)  # fmt: skip
_ATTRIBUTES = (
    "lang", "charset", "name", "content", "http-equiv", "class", "role", "aria-label", "tabindex", "scope", "alt",
    "src",
)  # fmt: skip
_EMPTY = ("meta", "wbr", "img")
_SINGLE = ("html", "head", "body", "main")


class _Reader(HTMLParser):
    """Collects what is wrong with a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.open: list[str] = []
        self.seen: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Checks an element and its attributes."""
        if tag not in _HTML:
            self.found.append(f"the element <{tag}>")
        self.seen[tag] = self.seen.get(tag, 0) + 1
        for name, value in attrs:
            if name not in _ATTRIBUTES:
                self.found.append(f"the attribute {name} of <{tag}>")
            if name == "src" and not (value or "").startswith("data:image/svg+xml;base64,"):
                self.found.append(f"the link {value!r}")
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element of SVG without content."""
        self.handle_starttag(tag, attrs)
        if tag not in _EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Checks that what is closed is what was opened last."""
        if not self.open or self.open.pop() != tag:
            self.found.append(f"the end </{tag}> out of place")

    def handle_comment(self, data: str) -> None:
        """No page of ours has one."""
        self.found.append(f"the comment {data[:40]!r}")

    def unknown_decl(self, data: str) -> None:
        """No page of ours has one."""
        self.found.append(f"the declaration {data[:40]!r}")

    handle_pi = handle_comment


def foreign(page: str) -> list[str]:
    """What a page holds that isn't the report's own."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    found = reader.found + [f"<{tag}> left open" for tag in reader.open]
    found += [f"{reader.seen.get(tag, 0)} times <{tag}>" for tag in _SINGLE if reader.seen.get(tag, 0) != 1]
    if "default-src 'none'" not in page:
        found.append("no policy against scripts")
    return found


def check_page(file: Path) -> None:
    """Raises where a page, or one of the figures beside it, holds anything foreign."""
    found = foreign(file.read_text(encoding="utf-8"))
    for figure in sorted((file.parent / "plots").glob("*.svg")):
        if figure.is_symlink():
            continue  # what others put there
        for element in ElementTree.parse(figure).iter():
            tag = element.tag.rpartition("}")[2].lower()
            if tag not in _SVG:
                found.append(f"{figure.name}: the element <{tag}>")
            found += [f"{figure.name}: the attribute {key}" for key in element.attrib if key.lower().startswith("on")]
    if found:
        raise AssertionError(f"{file.name}: {'; '.join(found[:5])}")
