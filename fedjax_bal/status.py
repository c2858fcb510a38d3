"""Durations and sizes as people read them, and a status line on standard error."""

import contextlib
import itertools
import sys
import threading
from collections.abc import Iterator

_WIDTH = 79


def duration(seconds: float) -> str:
    """Formats seconds in words, with the two largest units.

    Example:
        >>> duration(24), duration(75), duration(3675), duration(5447 * 3600)
        ('24 s', '1 min 15 s', '1 h 1 min', '227 days')
    """
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:,.0f} days"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    units = [(hours, "h"), (minutes, "min"), (0 if hours else rest, "s")]
    return " ".join(f"{number} {unit}" for number, unit in units if number) or "0 s"


def size(count: int) -> str:
    """Formats a number of bytes with three digits.

    Example:
        >>> size(205_400), size(143_300_000), size(1_405_700_000)
        ('0.205 MB', '143 MB', '1.41 GB')
    """
    number, unit = (count / 1e9, "GB") if count >= 999.5e6 else (count / 1e6, "MB")
    return f"{float(f'{number:.3g}'):g} {unit}"


class StatusLine:
    """A line on standard error whose text is replaced, and which is gone at the end of the `with` block.

    It needs a carriage return only, which notebooks understand as terminals do.

    Args:
        title: the first words of the line.
        shown: False for no line; None for one in a terminal or a notebook.
    """

    def __init__(self, title: str, shown: bool | None) -> None:
        self._title = title
        if shown is None:
            notebook = type(sys.stderr).__module__.startswith("ipykernel.")
            shown = sys.stderr is not None and (notebook or sys.stderr.isatty())
        self._shown = shown
        self._written = False

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Replaces the line."""
        if self._shown:
            print(f"\r{f'{self._title}: {text}':{_WIDTH}.{_WIDTH}}", end="", file=sys.stderr, flush=True)
            self._written = True

    @contextlib.contextmanager
    def counting(self, text: str) -> Iterator[None]:
        """Shows a text, and the seconds of the `with` block, during which nothing else may be shown."""
        ended = threading.Event()

        def count() -> None:
            for seconds in itertools.count():
                self.show(f"{text}, {duration(seconds)}")
                if ended.wait(1.0):
                    return

        thread = threading.Thread(target=count, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def clear(self) -> None:
        """Removes the line, so that something else can be printed."""
        if self._written:
            print(f"\r{'':{_WIDTH}}\r", end="", file=sys.stderr, flush=True)
            self._written = False
