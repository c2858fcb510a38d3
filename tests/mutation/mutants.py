"""Mutants: the package with one expression changed to another that is wrong, drawn by a seed."""

import ast
import functools
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("engine", "balance", "parts", "selection")
_OPPOSITE = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
_COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
"""Each comparison and what it becomes: the same with or without equality, and the opposite."""

_MASKS = re.compile(
    r"\b(active|arriv\w*|available|delivered|done|inside|known|live|mask|\w*present|real|trained|valid)\b"
)
_PLACES = re.compile(r"clients?|index|labels?|numbers?|places?|round|rows?")
_NO_SWAP = re.compile(  # symmetric functions, and those whose arguments can't be taken for each other
    r"(add|allclose|einsum|equal|fold_in|getattr|hasattr|isinstance|issubclass|m(ax|in)(imum)?|map|multiply|partial|print"
    r"|purpose_key|range|replace|setattr|zip)"
)
_TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Dict)


class Mutant(NamedTuple):
    """One change.

    Attributes:
        file: the file, relative to the repository.
        line: the line on which the expression begins.
        text: that line, without spaces around it.
        kind: the key of `KINDS`.
        before: the expression.
        after: what takes its place.
        start: where it begins in the file, in bytes.
        end: where it ends.
    """

    file: str
    line: int
    text: str
    kind: str
    before: str
    after: str
    start: int
    end: int

    @property
    def key(self) -> str:
        """Tells mutants of one source apart."""
        return f"{self.file}:{self.line}:{self.start} {self.after}"

    def applied(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.after.encode() + source[self.end :]


def draw(root: Path, seed: int, count: int) -> list[Mutant]:
    """Mutants of all packages in turn, of kinds drawn evenly, no two of one line."""
    rng, drawn, lines = random.Random(seed), [], set()
    sites = {package: _by_kind(root, package) for package in PACKAGES}
    while len(drawn) < count and any(sites.values()):
        package = PACKAGES[len(drawn) % len(PACKAGES)]
        of_kind = sites[package][rng.choice(sorted(sites[package]))]
        mutant = rng.choice(of_kind)
        if (mutant.file, mutant.line) not in lines:
            lines.add((mutant.file, mutant.line))
            drawn.append(mutant)
    return drawn


@functools.cache
def _by_kind(root: Path, package: str) -> dict[str, list[Mutant]]:
    found: dict[str, list[Mutant]] = {}
    for path in sorted((root / "fedjax_bal" / package).rglob("*.py")):
        for mutant in mutants(path.read_bytes(), path.relative_to(root).as_posix()):
            found.setdefault(mutant.kind, []).append(mutant)
    return found


def mutants(source: bytes, file: str) -> Iterator[Mutant]:
    """All mutants of a file, in its order."""
    finder = _Finder()
    finder.visit(ast.parse(source))
    lines, starts = source.splitlines(keepends=True), [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    for node in finder.found:
        for kind, changes in KINDS.items():
            for old, new in changes(node):
                start = starts[old.lineno - 1] + old.col_offset
                end = starts[old.end_lineno - 1] + old.end_col_offset
                text = lines[old.lineno - 1].decode().strip()
                yield Mutant(file, old.lineno, text, kind, source[start:end].decode(), _text(new), start, end)


class _Finder(ast.NodeVisitor):
    """Finds the expressions of functions that compute something: no annotations, messages or defaults."""

    def __init__(self) -> None:
        self.found: list[ast.expr] = []
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        del node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        del node

    def generic_visit(self, node: ast.AST) -> None:
        if self._depth and isinstance(node, ast.expr):
            self.found.append(node)
        if isinstance(node, ast.Subscript):  # its numbers are places, which `_index` shifts
            self.visit(node.value)
            inner = [child for child in ast.walk(node.slice) if isinstance(child, ast.BinOp | ast.Compare | ast.Call)]
            self.found += inner if self._depth else []
            return
        super().generic_visit(node)


Change = tuple[ast.expr, ast.expr]


def _numbers(node: ast.expr) -> bool:
    """Whether it is an operation on numbers, as far as one sees."""
    if not isinstance(node, ast.BinOp):
        return False
    return not any(isinstance(side, _TEXTS) or _is_text(side) for side in (node.left, node.right))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _sign(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node, node.operand
    if _numbers(node) and type(node.op) in _OPPOSITE:
        yield node, ast.BinOp(node.left, _OPPOSITE[type(node.op)](), node.right)


def _comparison(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for kind in _COMPARISONS.get(type(node.ops[0]), ()):
            yield node, ast.Compare(node.left, [kind()], node.comparators)


def _mask(node: ast.expr) -> Iterator[Change]:
    if _is_call(node, "where") and len(node.args) == 3:
        yield node, node.args[1]
        yield node, node.args[2]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        yield node, node.left
        yield node, node.right
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for side, rest in ((node.left, node.right), (node.right, node.left)):
            if _MASKS.search(ast.unparse(side)):
                yield node, rest


def _index(node: ast.expr) -> Iterator[Change]:
    if not isinstance(node, ast.Subscript):
        return
    for place in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
        for bound in (place.lower, place.upper) if isinstance(place, ast.Slice) else (place,):
            value = _whole(bound)
            if value is not None:
                yield bound, ast.Constant(value + (1 if value >= 0 else -1))
            elif isinstance(bound, ast.Name) and _PLACES.fullmatch(bound.id):
                yield bound, ast.BinOp(bound, ast.Sub(), ast.Constant(1))


def _whole(node: ast.expr | None) -> int | None:
    try:
        value = ast.literal_eval(node) if node else None
    except ValueError:
        return None
    return value if type(value) is int else None


def _constant(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float) and node.value in (0, 1):
        yield node, ast.Constant(type(node.value)(1 - node.value))


def _swap(node: ast.expr) -> Iterator[Change]:
    if not isinstance(node, ast.Call) or len(node.args) < 2 or _NO_SWAP.fullmatch(_name(node)):
        return
    first = len(node.args) - 2 if _is_call(node, "where") else 0
    one, other = node.args[first : first + 2]
    if _is_call(node, "where") or all(isinstance(each, ast.Name | ast.Attribute) for each in (one, other)):
        rest = [*node.args[:first], other, one, *node.args[first + 2 :]]
        yield node, ast.Call(node.func, rest, node.keywords)


def _term(node: ast.expr) -> Iterator[Change]:
    if _numbers(node) and isinstance(node.op, ast.Add | ast.Sub):
        yield node, node.left
        if isinstance(node.op, ast.Add):
            yield node, node.right


KINDS: dict[str, Callable[[ast.expr], Iterator[Change]]] = {
    "sign": _sign,
    "comparison": _comparison,
    "mask": _mask,
    "index": _index,
    "constant": _constant,
    "swap": _swap,
    "term": _term,
}
"""Kind -> an expression's changes, each the node to replace and the new one."""


def _is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and _name(node) == name


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _text(node: ast.expr) -> str:
    text = ast.unparse(node)
    compound = isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp | ast.IfExp | ast.Lambda)
    return f"({text})" if compound else text
