"""What a page may consist of: the report's own elements and nothing that runs or is fetched."""

from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

_SINGLE = ("html", "head", "body", "main")
_EMPTY = ("meta", "wbr", "img")
_HTML = {
    *_SINGLE, *_EMPTY, "title", "style", "p", "h1", "h2", "h3", "b", "ul", "li", "div", "table", "thead", "tbody", "tr",
    "th", "td", "pre", "details", "summary", "figure", "figcaption", "dl", "dt", "dd", "nav",
    "a",
}  # fmt: skip
_SVG = {
    "svg", "g", "path", "text", "tspan", "title", "use", "defs", "clippath", "rect", "image", "lineargradient", "stop",
    "style", "metadata", "rdf", "work", "type", "format",
}  # fmt: skip
_ATTRIBUTES = {
    "lang", "charset", "name", "content", "http-equiv", "class", "role", "aria-label", "tabindex", "scope", "alt",
    "src", "id", "href",
}  # fmt: skip


class _Reader(HTMLParser):
    """Collects what is wrong with a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Checks an element and its attributes."""
        self.seen.append(tag)
        self.found += [] if tag in _HTML else [f"the element <{tag}>"]
        self.found += [f"the attribute {name} of <{tag}>" for name, _ in attrs if name not in _ATTRIBUTES]
        links = [value or "" for name, value in attrs if name == "src"]
        self.found += [f"the link {url!r}" for url in links if not url.startswith("data:image/svg+xml;base64,")]
        self.found += [f"the link {url!r}" for name, url in attrs if name == "href" and not (url or "").startswith("#")]
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Checks that what is closed is what was opened last."""
        if tag not in _EMPTY and (not self.open or self.open.pop() != tag):
            self.found.append(f"the end </{tag}> out of place")

    def handle_comment(self, data: str) -> None:
        """No page of ours has one."""
        self.found.append(f"the comment {data[:40]!r}")

    unknown_decl = handle_pi = handle_comment


def foreign(page: str) -> list[str]:
    """What a page holds that isn't the report's own."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    found = reader.found + [f"<{tag}> left open" for tag in reader.open]
    found += [f"{reader.seen.count(tag)} times <{tag}>" for tag in _SINGLE if reader.seen.count(tag) != 1]
    return found + ([] if "default-src 'none'" in page else ["no policy against scripts"])


def check_page(file: Path) -> None:
    """Raises where a page, or one of the figures beside it, holds anything foreign."""
    found = foreign(file.read_text(encoding="utf-8"))
    for figure in sorted((file.parent / "plots").glob("*.svg")):
        if not figure.is_symlink():  # what others put there
            elements = [*ElementTree.parse(figure).iter()]
            found += [one.tag for one in elements if one.tag.rpartition("}")[2].lower() not in _SVG]
            found += [key for one in elements for key in one.attrib if key.lower().startswith("on")]
    if found:
        raise AssertionError(f"{file.name}: {'; '.join(found[:5])}")
