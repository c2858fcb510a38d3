"""Counts the launches of each loop of a compiled program, and estimates their time by a roofline."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import _hlo
from _accelerators import Target

LAUNCH_S = 1.5e-6
"""Minimum duration of a kernel on a GPU, in seconds."""
SHARE_OF_BANDWIDTH, SHARE_OF_PEAK = 0.85, 0.6
"""Fraction of the peak that a good kernel reaches."""

_THUNK = re.compile(r"^(\s*)\d+: (k\w+)")
_VIEWS = {"parameter", "bitcast", "tuple", "get-tuple-element"}
_CONTROL = ("kWhile", "kConditional", "kCommandBuffer", "kSequential")


class Kernel(NamedTuple):
    """A kernel: name, source, bytes moved, operations of its products, and estimated seconds."""

    name: str
    source: str
    size: int
    flops: int
    seconds: float
    copies: bool


class Loop(NamedTuple):
    """One iteration of a loop, or one branch, without inner loops and branches.

    Attributes:
        path: its position: siblings are numbered from 1, branches are marked "b"; "" is the whole program.
        kernels: the kernels that it launches.
        in_graphs: number of its launches that are replayed from CUDA graphs; None for a branch, or if there are none.
    """

    path: str
    kernels: tuple[Kernel, ...]
    in_graphs: int | None = None

    @property
    def figures(self) -> dict[str, float]:
        """Launches, copies, bytes, operations and estimated seconds."""
        return {
            "launches": len(self.kernels),
            "copies": sum(kernel.copies for kernel in self.kernels),
            "bytes": sum(kernel.size for kernel in self.kernels),
            "flops": sum(kernel.flops for kernel in self.kernels),
            "estimated_s": sum(kernel.seconds for kernel in self.kernels),
        }


def loops_of(text: str, target: Target, precision: str, thunks: str = "") -> list[Loop]:
    """Lists all loops and branches of an optimized program, outer ones first; `thunks` is XLA's list of launches."""
    program, graphs = _hlo.parse(text), iter(launches_in_graphs(thunks))

    def walk(name: str, path: str, in_graphs: int | None) -> Iterator[Loop]:
        kernels = (_kernel(program, name, each, target, precision) for each in program.kernels(name))
        yield Loop(path, tuple(kernels), in_graphs)
        for place, inner in enumerate(program.inner(name), 1):
            for branch, called in enumerate(inner.called):
                here = f"{path}{'.' if path else ''}{place}" + f"b{branch}" * (inner.operation == "conditional")
                yield from walk(called, here, next(graphs, None) if inner.operation == "while" else None)

    return list(walk(program.entry, "", None))


def local_step(loops: list[Loop]) -> Loop:
    """Returns the loop with the most operations per iteration: a local step of all lanes."""
    return max(loops, key=lambda loop: loop.figures["flops"])


def launches_in_graphs(thunks: str) -> list[int]:
    """Counts, for each `while` in XLA's list of launches, the launches of its body that are in a CUDA graph."""
    counts: list[int] = []
    above: list[tuple[int, str, int]] = []  # indentation, kind, and number of the loop
    in_condition = False
    for line in thunks.splitlines():
        in_condition = (in_condition or line.strip() == "condition:") and line.strip() != "body:"
        if in_condition or not (found := _THUNK.match(line)):
            continue
        depth, kind = len(found.group(1)), found.group(2)
        while above and above[-1][0] >= depth:
            above.pop()
        if kind not in _CONTROL:
            loop = next((number for _, outer, number in reversed(above) if outer == "kWhile"), None)
            captured = any(outer == "kCommandBuffer" for _, outer, _ in above)
            direct = not any(outer == "kConditional" for _, outer, _ in above)
            if loop is not None and captured and direct:
                counts[loop] += 1
            continue
        above.append((depth, kind, len(counts)))
        counts += [0] * (kind == "kWhile")
    return counts


def _kernel(program: _hlo.Program, name: str, instruction: _hlo.Instruction, target: Target, precision: str) -> Kernel:
    size, flops = program.traffic(name, instruction), program.flops(name, instruction)
    cycles = instruction.attribute(r'estimated_cycles":"(\d+)"')
    peak = target.peaks.get(precision, target.peaks["float32"]) * SHARE_OF_PEAK
    roofline = max(size / (target.bandwidth * SHARE_OF_BANDWIDTH), flops / peak)
    seconds = int(cycles) / target.clock if cycles and target.clock else roofline
    if instruction.runs_beside:
        seconds = 0.0
    elif target.platform == "cuda":
        seconds = max(seconds, LAUNCH_S)
    work = {each.operation for each in program.fused(instruction).values()} - _VIEWS
    source = instruction.attribute(r'op_name="([^"]*)"')
    return Kernel(
        instruction.name, source, size, flops, seconds, bool(work) and work <= {"copy", "copy-start", "slice-start"}
    )
