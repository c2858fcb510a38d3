"""Parses an optimized program as printed by XLA, and counts the bytes and operations of its kernels."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

_BYTES = {"pred": 1, "bf16": 2, "f16": 2}
_ARRAY = re.compile(r"\b(pred|bf16|[fsuc]\d+)\[([\d,]*)\]")
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_REFERENCE = re.compile(r"%([\w.\-]+)")
_CONVOLUTION = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id")
_FREE += ("opt-barrier", "add-dependency", "copy-done", "slice-done", "async-done")
_STARTS = ("copy-start", "slice-start")
_NO_WORK = ("ConcatBitcast", "AllocateBuffer")
_VIEWS = ("bitcast", "get-tuple-element", "reshape")
_PARTIAL = ("dynamic-slice", "gather", "slice")


class Instruction(NamedTuple):
    """A line of a computation: `name = type operation(operands), attributes`."""

    name: str
    type: str
    operation: str
    operands: tuple[str, ...]
    attributes: str
    root: bool

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Element type and shape of each array in its result."""
        found = _ARRAY.findall(self.type)
        return [(kind, tuple(int(side) for side in sides.split(",") if side)) for kind, sides in found]

    @property
    def size(self) -> int:
        """Size of its result in bytes."""
        return sum(math.prod(shape) * _width(kind) for kind, shape in self.shapes)

    @property
    def runs_beside(self) -> bool:
        """Whether it only starts a copy, which overlaps with the following kernels."""
        return self.operation in _STARTS

    def attribute(self, pattern: str) -> str:
        """Returns the first group of a pattern's match in its attributes; empty without a match."""
        found = re.search(pattern, self.attributes)
        return found.group(1) if found else ""

    @property
    def called(self) -> list[str]:
        """Names of the computations that it runs: a loop's body, a conditional's branches, or a called computation."""
        if self.operation == "while":
            return [self.attribute(r"body=%?([\w.\-]+)")]
        if self.operation == "conditional":
            listed = self.attribute(r"branch_computations=\{([^}]*)\}")
            both = [self.attribute(rf"{side}_computation=%?([\w.\-]+)") for side in ("true", "false")]
            return re.findall(r"[\w.\-]+", listed) or both
        return [self.attribute(r"to_apply=%?([\w.\-]+)")] if self.operation == "call" else []


Computation = dict[str, Instruction]


class Program(NamedTuple):
    """The computations of a program by name, and the name of the entry computation."""

    computations: dict[str, Computation]
    entry: str

    def kernels(self, name: str) -> Iterator[Instruction]:
        """Yields the instructions that a computation launches itself, without loops, branches and calls."""
        for instruction in self.computations[name].values():
            idle = any(f'"{target}"' in instruction.attributes for target in _NO_WORK)
            if instruction.operation not in _FREE and not instruction.called and not idle:
                yield instruction

    def inner(self, name: str) -> Iterator[Instruction]:
        """Yields the loops, branches and calls of a computation."""
        return (instruction for instruction in self.computations[name].values() if instruction.called)

    def fused(self, instruction: Instruction) -> Computation:
        """Returns the instructions that a kernel fuses; only the instruction itself if it isn't a fusion."""
        inner = self.computations.get(instruction.attribute(r"calls=%?([\w.\-]+)"), {})
        return inner if instruction.operation == "fusion" else {instruction.name: instruction}

    def flops(self, name: str, instruction: Instruction) -> int:
        """Counts the operations of matrix products and convolutions in a kernel; a multiply-add is two."""
        if instruction.operation == "fusion":
            inner = instruction.attribute(r"calls=%?([\w.\-]+)")
            return sum(self.flops(inner, each) for each in self.computations[inner].values())
        shapes = [
            self.computations[name][operand].shapes[0][1]
            for operand in instruction.operands[:2]
            if self.computations[name][operand].shapes
        ]
        if len(shapes) < 2:
            return 0
        if _CONVOLUTION.search(instruction.attributes):
            return _convolution_flops(instruction, *shapes)
        if "(implicit_product)" in instruction.attributes:  # of `models/convolution/implicit.py`: [.., summed, columns]
            return 2 * math.prod(shapes[1]) * instruction.shapes[0][1][-2]
        if instruction.operation != "dot" and "gemm" not in instruction.attributes:
            return 0
        sides = instruction.attribute(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([\d,"]*)').replace('"', "")
        return 2 * math.prod(instruction.shapes[0][1]) * math.prod(shapes[0][int(side)] for side in sides.split(","))

    def traffic(self, name: str, instruction: Instruction) -> int:
        """Counts the bytes that a kernel reads and writes; slices and in-place updates count only what they touch."""
        computation = self.computations[name]
        if instruction.operation in _STARTS:  # its result lists source and destination; the smaller one is a slice
            return 2 * min(math.prod(shape) * _width(kind) for kind, shape in instruction.shapes if shape)
        if instruction.operation == "fusion":
            inner = self.fused(instruction)
            return sum(_read(inner, each) for each in inner.values() if each.operation == "parameter") + _written(inner)
        read = sum(_operand_size(computation, instruction, place) for place in range(len(instruction.operands)))
        return read + _result_size(computation, instruction)


def parse(text: str) -> Program:
    """Parses a program in the format of `compiled.as_text()`."""
    computations, entry, current = {}, "", None
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header.group(2), {})
            entry = header.group(2) if header.group(1) else entry
        elif current is not None and (found := _LINE.match(line)):
            instruction = _instruction(found.group(2), found.group(3), root=bool(found.group(1)))
            current[instruction.name] = instruction
    return Program(computations, entry)


def _instruction(name: str, text: str, *, root: bool) -> Instruction:
    cut = _closing(text) if text.startswith("(") else text.index(" ")
    kind, rest = text[:cut], text[cut:].strip()
    operation, _, rest = rest.partition("(")
    end = _closing("(" + rest) - 1
    return Instruction(name, kind, operation, tuple(_REFERENCE.findall(rest[:end])), rest[end:], root)


def _closing(text: str) -> int:
    """Returns the position after the bracket that closes the first one."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "({") - (character in ")}")
        if depth == 0:
            return place + 1
    return len(text)


def _width(kind: str) -> int:
    return _BYTES.get(kind) or int(re.sub(r"\D", "", kind)) // 8


def _convolution_flops(instruction: Instruction, first: tuple[int, ...], second: tuple[int, ...]) -> int:
    result = instruction.shapes[0][1]
    # Each output of a forward convolution sums over a kernel's taps and inputs; in the two gradients the three arrays
    # swap roles.
    output, kernel = result, second
    if "convBackwardFilter" in instruction.attributes:
        output, kernel = second, result
    elif "convBackwardInput" in instruction.attributes:
        output = first
    labels = _CONVOLUTION.search(instruction.attributes)
    outputs = kernel[labels.group(2).index("o")] if labels else 1
    # The TPU compiler writes batched products as convolutions of an image dilated with zeros; of these, a window of the
    # kernel contains only a fraction 1/dilation of real pixels.
    apart = math.prod(int(step) for step in instruction.attribute(r"lhs_dilate=([\dx]+)").split("x") if step)
    return 2 * math.prod(output) * math.prod(kernel) // outputs // apart


def _operand_size(computation: Computation, user: Instruction, place: int) -> int:
    """Bytes of an operand that an instruction reads."""
    size = computation[user.operands[place]].size if user.operands[place] in computation else 0
    if place == 0 and user.operation in _PARTIAL:
        return user.size
    return 0 if place == 0 and user.operation in ("dynamic-update-slice", "scatter") else size


def _result_size(computation: Computation, instruction: Instruction) -> int:
    """Bytes that an instruction writes; for an in-place update, the size of the update operand (second or last)."""
    place = {"dynamic-update-slice": 1, "scatter": -1}.get(instruction.operation)
    return instruction.size if place is None else computation[instruction.operands[place]].size


def _read(inner: Computation, parameter: Instruction) -> int:
    """Bytes of a parameter that a fused kernel reads."""
    users = defaultdict(list)
    for instruction in inner.values():
        for place, operand in enumerate(instruction.operands):
            users[operand].append((instruction, place))
    touched, open_ = 0, [parameter.name]
    while open_:
        for user, place in users[open_.pop()]:
            if user.operation in _VIEWS:
                open_.append(user.name)
            else:
                touched += _operand_size(inner, user, place)
    return min(touched, parameter.size)


def _written(inner: Computation) -> int:
    """Bytes that a fused kernel writes."""
    root = next(each for each in inner.values() if each.root)
    ends = [inner[name] for name in root.operands] if root.operation == "tuple" else [root]
    return sum(_result_size(inner, _seen_through(inner, end)) for end in ends)


def _seen_through(inner: Computation, instruction: Instruction) -> Instruction:
    while instruction.operation == "bitcast":
        instruction = inner[instruction.operands[0]]
    return instruction
