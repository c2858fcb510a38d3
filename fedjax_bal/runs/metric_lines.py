"""Reads `metrics.jsonl`, and thins out a very long file to what figures can show."""

from array import array
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

MOST_LINES = 50_000
"""More lines than that are thinned out: a page can't show more, and each takes two to three kilobytes of memory."""

LONGEST_LINE = 2**26
"""Bytes; of a longer line no more is read."""

Parse = Callable[[int, bytes], dict[str, Any] | None]


def read_lines(stream: BinaryIO, parse: Parse) -> tuple[list[dict[str, Any]], int]:
    """Reads a file of lines in memory that does not grow with it; returns the lines, and how many were left out.

    Of two lines of the same run and round the later one counts. Of more than `MOST_LINES` lines evenly spaced rounds
    are kept, the same for all seeds of a method, and the last one of each run; `bytes_up` and `bytes_down` of those
    left out are added to the next one that is kept.

    `parse` turns the number of a line, from 1, and the line into a checked dict; None for one that doesn't count.
    """
    ledger, held = _Ledger(), {}
    for number, at, raw in _numbered(stream):
        line = parse(number, raw)
        if line is None:
            continue
        ledger.add(line, number, at)
        if len(held) <= MOST_LINES:  # once there are more, those that count are read a second time
            held[line["method"], line["seed"], line["round"]] = line
    if len(held) <= MOST_LINES:
        return list(held.values()), 0
    held.clear()
    return ledger.read_again(stream, parse)


def _numbered(stream: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    """Each line with its number, from 1, and its offset in the file."""
    number = at = 0
    while raw := stream.readline(LONGEST_LINE + 1):
        number += 1
        yield number, at, raw
        at += len(raw)


class _Ledger:
    """The run, the round, the offset and the traffic of each line: 50 bytes a line."""

    def __init__(self) -> None:
        self._methods: dict[str, int] = {}
        self._runs: dict[tuple[int, int], int] = {}
        self._places = array("q")  # method, run, round, number and offset, one line after the other
        self._sent = array("d")  # up and down; nan where it isn't known

    def add(self, line: dict[str, Any], number: int, at: int) -> None:
        method = self._methods.setdefault(line["method"], len(self._methods))
        run = self._runs.setdefault((method, line["seed"]), len(self._runs))
        self._places.extend((method, run, line["round"], number, at))
        for key in ("bytes_up", "bytes_down"):
            sent = line.get(key)
            self._sent.append(np.nan if sent is None else sent)

    def read_again(self, stream: BinaryIO, parse: Parse) -> tuple[list[dict[str, Any]], int]:
        places, sent = self._in_order()
        kept = np.flatnonzero(self._chosen(places))
        # The last line of each run is kept, so that no sum runs over from one run into the next.
        sums = np.add.reduceat(sent, np.concatenate([[0], kept[:-1] + 1]))
        lines = []
        for place in np.argsort(places[kept, 4]):
            number, at = places[kept[place], 3:].tolist()
            stream.seek(at)
            line = parse(number, stream.readline())
            if line is not None:
                up, down = (None if np.isnan(total) else int(total) for total in sums[place])
                lines.append({**line, "bytes_up": up, "bytes_down": down})
        return lines, len(places) - len(lines)

    def _in_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Places and bytes of the lines that count, by run and round."""
        places = np.frombuffer(self._places, np.int64).reshape(-1, 5)
        sent = np.frombuffer(self._sent, np.float64).reshape(-1, 2)
        order = np.lexsort((places[:, 4], places[:, 2], places[:, 1]))
        places, sent = places[order], sent[order]
        counts = np.append((places[1:, 1:3] != places[:-1, 1:3]).any(1), True)
        return places[counts], sent[counts]

    def _chosen(self, places: np.ndarray) -> np.ndarray:
        chosen = np.append(places[1:, 1] != places[:-1, 1], True)
        for method in range(len(self._methods)):
            own = places[:, 0] == method
            stride = -(-int(own.sum()) * len(self._methods) // MOST_LINES)
            rounds = np.unique(places[own, 2])[::-1][:: max(stride, 1)]
            chosen |= own & np.isin(places[:, 2], rounds)
        return chosen
