"""What is done to valid input: bytes and trees changed in ways that files break, and in ways that attackers do."""

import json
import math
import random
from collections.abc import Callable, MutableMapping, MutableSequence
from typing import Any

HOSTILE_TEXTS = (
    "",
    " ",
    ".",
    "..",
    "../../../../tmp/outside",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "C:\\a",
    "~",
    "a\nb",
    "a\rb\tc",
    "\0",
    "a\0b",
    "\x1b[31mred\x1b[0m",
    "\x7f\x85\u2028\u2029",
    "\u202etxt.exe",
    "\ud800",
    "\udcff",
    "\U0010ffff\ufffe",
    "e\u0301" * 40,
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</title></style></svg><script>alert(1)</script>",
    "]]><!--",
    "--><svg onload=alert(1)>",
    "javascript:alert(1)",
    "&lt;script&gt;&#0;",
    "$x^{$",
    "%s%n{}{0.__class__}",
    "nan",
    "1e999",
    "true",
    "null",
    "x" * 300,
    "x" * 20_000,
    "\N{ARABIC LETTER ALEF}" * 70,
)
HOSTILE_NUMBERS = (
    0,
    -1,
    1,
    2,
    3.5,
    -0.0,
    1e-320,
    1e18,
    1e19,
    -1e18,
    1e308,
    -1e308,
    math.inf,
    -math.inf,
    math.nan,
    2**31,
    2**32,
    2**53 + 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**30,
    10**400,
    10**4000,
)
_EXTREMES = (
    b"\0" * 4,
    b"\xff" * 4,
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\1",
    b"\xff" * 8,
    b"\x7f" + b"\xff" * 7,
)
_TOKENS = (
    b"1e999",
    b"NaN",
    b"-Infinity",
    b"9" * 5000,
    b"-1",
    b"0",
    b"[" * 2000,
    b'"',
    b"{",
    b"\n",
    b"\xff\xfe",
    b"null",
)


def hostile_value(rng: random.Random, depth: int = 0) -> Any:
    """A value that nobody expects there."""
    kind = rng.randrange(10 if depth < 3 else 7)
    if kind < 3:
        return rng.choice(HOSTILE_TEXTS)
    if kind < 6:
        return rng.choice(HOSTILE_NUMBERS)
    if kind == 6:
        return rng.choice((None, True, False, [], {}))
    size = rng.choice((1, 2, 3, 11))
    if kind == 7:
        return [hostile_value(rng, depth + 1) for _ in range(size)]
    if kind == 8:
        return {str(hostile_value(rng, 3))[:60]: hostile_value(rng, depth + 1) for _ in range(size)}
    value: Any = rng.choice(HOSTILE_NUMBERS)
    for _ in range(rng.choice((5, 30, 300, 900))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def mutated_bytes(rng: random.Random, content: bytes) -> bytes:
    """A file with one to four things done to it."""
    if rng.random() < 0.02:
        return rng.choice((b"", rng.randbytes(rng.randrange(1, 2000)), b"\0" * 5000, b"\x80\x04N."))
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_CHANGES)(rng, data)
    return bytes(data)


def _place(rng: random.Random, data: bytearray) -> int:
    # Headers and ends are where formats keep what they believe.
    length = len(data)
    if not length:
        return 0
    return rng.choice(
        (rng.randrange(min(length, 64)), rng.randrange(length), length - 1 - rng.randrange(min(length, 128)))
    )


def _flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        if data:
            data[_place(rng, data)] ^= 1 << rng.randrange(8)


def _truncate(rng: random.Random, data: bytearray) -> None:
    del data[_place(rng, data) :]


def _insert(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 100)))


def _delete(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    del data[at : at + rng.choice((1, 2, 4, 100, 1000))]


def _repeat(rng: random.Random, data: bytearray) -> None:
    start = _place(rng, data)
    data[start:start] = data[start : start + rng.choice((1, 4, 64, 1024))] * rng.choice((1, 2, 5))


def _swap(rng: random.Random, data: bytearray) -> None:
    width = rng.choice((1, 2, 4, 8, 32))
    one, other = sorted((_place(rng, data), _place(rng, data)))
    if one + width <= other and other + width <= len(data):
        data[one : one + width], data[other : other + width] = data[other : other + width], data[one : one + width]


def _claim(rng: random.Random, data: bytearray) -> None:
    extreme = rng.choice(_EXTREMES)
    at = _place(rng, data)
    data[at : at + len(extreme)] = extreme


def _token(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    if rng.random() < 0.6:  # in place of a number in a text
        digits = [place for place in range(at, min(at + 400, len(data))) if data[place] in b"0123456789"]
        at = digits[0] if digits else at
        end = at
        while end < len(data) and data[end] in b"0123456789.eE+-":
            end += 1
        data[at:end] = rng.choice(_TOKENS)
    else:
        data[at:at] = rng.choice(_TOKENS)


_CHANGES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    _flip,
    _flip,
    _truncate,
    _insert,
    _delete,
    _repeat,
    _swap,
    _claim,
    _token,
)


def mutated_tree(rng: random.Random, tree: Any, times: int | None = None) -> Any:
    """What a text file holds, with one to three values, keys or items changed; changes it in place."""
    for _ in range(times or rng.choice((1, 1, 2, 3))):
        tree = _changed(rng, tree)
    return tree


def _changed(rng: random.Random, tree: Any) -> Any:
    owner, key = tree, None
    path = []
    while isinstance(owner, MutableMapping | MutableSequence) and len(owner):
        key = rng.choice(list(owner)) if isinstance(owner, MutableMapping) else rng.randrange(len(owner))
        path.append((owner, key))
        if rng.random() < 0.25:
            break
        owner = owner[key]
    if not path:
        return hostile_value(rng)
    owner, key = path[-1]
    kind = rng.randrange(10)
    if kind < 6:
        owner[key] = hostile_value(rng)
    elif kind == 6:
        del owner[key]
    elif kind == 7 and isinstance(owner, MutableMapping):
        owner[str(hostile_value(rng, 3))[:200]] = owner.pop(key)
    elif kind == 8:
        elsewhere, other = rng.choice(path)
        owner[key] = json.loads(json.dumps(elsewhere[other])) if elsewhere is not owner else [owner[key]]
    elif isinstance(owner, MutableSequence):
        owner[key:key] = [owner[key]] * rng.choice((1, 2, 50))
    else:
        owner[key] = {"a": owner[key]} if rng.random() < 0.5 else str(owner[key])
    return tree


def as_json(tree: Any) -> bytes:
    """JSON as Python writes it, which can hold NaN and lone surrogates."""
    return json.dumps(tree).encode()
