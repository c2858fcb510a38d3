"""The number of clients that an accelerator can train at a time, computed without having that accelerator."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_bal.engine.device import Layout
from fedjax_bal.engine.host.compiler_options import compile_for_backend
from fedjax_bal.engine.host.executable import compile_to_fit
from fedjax_bal.engine.host.memory import program_bytes
from fedjax_bal.engine.host.simulation import Simulation
from fedjax_bal.engine.host.strategy import resolve_strategy, with_layout
from fedjax_bal.target import compiling_for


class Room(NamedTuple):
    """An accelerator's room for a run.

    Attributes:
        layout: the layout that the run would have on one such device.
        program: bytes that its program takes, beside data and state.
        free: bytes that data and state leave.
    """

    layout: Layout
    program: int
    free: int

    @property
    def clients(self) -> int:
        """Clients at a time that there is room for, at least: all of the program is taken to grow with their number."""
        return self.layout.width * self.free // max(self.program, 1)


def room_on(devices: Sequence[Any], memory: int, simulation: Simulation) -> Room:
    """Compiles a run's program for the first of `devices`, each with so many bytes of memory.

    Raises:
        ValueError: not even a single client at a time fits.
    """
    execution, free = simulation.execution, memory - simulation.device_bytes
    with compiling_for(devices):
        layout = Layout(resolve_strategy(execution.strategy))
        setting, sizes = dataclasses.replace(simulation.setting, layout=layout), np.diff(simulation.federation.offsets)
        chunk = None if execution.chunk == "auto" else int(execution.chunk)
        setting, compiled = compile_to_fit(
            with_layout(setting, sizes, simulation.selector, chunk),
            lambda setting: compile_for_backend(simulation.lower(setting)),
            fixed=chunk is not None,
            free=free,
        )
    return Room(setting.layout, program_bytes(compiled), free)
