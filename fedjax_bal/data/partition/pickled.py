"""Reads the integers of a pickle without unpickling it: nothing that the file names is looked up or called."""

import pickletools
import re
from typing import Any

MAGIC = b"\x80"
"""The first byte of a pickle of protocol 2 or later."""

_DTYPE = ("numpy dtype",)
_SCALAR = ("numpy.core.multiarray scalar", "numpy._core.multiarray scalar")  # before NumPy 2.0 and since
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES"}
_LITERALS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_NEW = {"EMPTY_LIST": list, "EMPTY_DICT": dict}
_MERGED = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_pickled_integers(content: bytes) -> Any:
    """Follows the instructions of a pickle that makes lists, tuples and mappings of integers, Python's or NumPy's.

    Raises:
        ValueError: the pickle names another function or class than those of NumPy's integers, or has other contents.
            Damaged content raises any exception.

    Example:
        >>> import pickle
        >>> read_pickled_integers(pickle.dumps([[3, 1], [0]]))
        [[3, 1], [0]]
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[Any, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    for instruction, value, _ in pickletools.genops(content):
        match instruction.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                marks.append(len(stack))
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINPUT" | "LONG_BINPUT":
                memo[value] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case "APPEND":
                item = stack.pop()
                stack[-1].append(item)
            case "APPENDS":
                items = since_mark()
                stack[-1].extend(items)
            case "SETITEM":
                items = [stack.pop(), stack.pop()]
                stack[-1][items[1]] = items[0]
            case "SETITEMS":
                items = since_mark()
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "GLOBAL":
                stack.append(_known(str(value)))
            case "STACK_GLOBAL":
                name = stack.pop()
                stack.append(_known(f"{stack.pop()} {name}"))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(_integer(*arguments) if stack.pop() in _SCALAR else _type(*arguments))
            case "BUILD":  # NumPy's description of a type: its version, the order of the bytes, and more
                state = stack.pop()
                stack[-1]["order"] = "big" if state[1] == ">" else "little"
            case name if name in _LITERALS:
                stack.append(_LITERALS[name])
            case name if name in _NEW:
                stack.append(_NEW[name]())
            case name if name in _MERGED:
                stack[-_MERGED[name] :] = [tuple(stack[-_MERGED[name] :])]
            case name if name in _VALUES:
                stack.append(value)
            case name:
                raise ValueError(f"is a pickle with {name}, must be lists of integers; write it as JSON or npz")
    return stack.pop()


def _known(name: str) -> str:
    if name not in (*_DTYPE, *_SCALAR):
        raise ValueError(f"is a pickle that calls {name.replace(' ', '.')}, which isn't run; write it as JSON or npz")
    return name


def _type(code: str, *flags: bool) -> dict[str, Any]:
    """Describes a NumPy integer type, by its code, such as i8."""
    if not re.fullmatch("[iu][1248]", code):
        raise ValueError(f"is a pickle of numbers of type {code}, must be integers")
    return {"signed": code[0] == "i", "order": "little"}


def _integer(kind: dict[str, Any], content: bytes) -> int:
    return int.from_bytes(content, kind["order"], signed=kind["signed"])
