"""Compiles a workload's program for an accelerator without having the device, and counts the program's launches.

    python benchmarks/aot.py --target h200 --workload W1 [--set execution.precision=bfloat16] [--kernels 10]
    python benchmarks/aot.py --target h200 --workload W1 --save FILE
    python benchmarks/aot.py --target h200 --workload W1 --against FILE

Needs the extra `aot`. Nothing is measured: launches, copies, bytes and operations are counted in the optimized program,
and times are ESTIMATES, on GPUs by a roofline, on TPUs by the compiler. XLA can't try algorithms without a device, so
the real program may use other matrix products and convolutions. `--save` adds the figures to a file; `--against`
compares with them and fails if a local step launches, copies or moves over 5% more.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _accelerators
import _common
import _loops

TOLERANCE = 1.05
GUARDED = ("launches", "copies", "bytes")


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        _prepare_xla(Path(folder), _accelerators.TARGETS[arguments.target])
        compiled, about = compile_workload(arguments.target, arguments.workload, arguments.set)
        thunks = next(Path(folder).glob("*dispatch*after_thunk_passes.txt"), None)
        target, precision = _accelerators.TARGETS[arguments.target], about["precision"]
        loops = _loops.loops_of(compiled.as_text(), target, precision, thunks.read_text() if thunks else "")
    figures = about | {"temp_bytes": compiled.memory_analysis().temp_size_in_bytes} | summary(loops)
    print("\n".join([*report(figures), *largest_kernels(loops, arguments.loop or figures["step"], arguments.kernels)]))
    name = " ".join([arguments.target, arguments.workload, *arguments.set])
    if arguments.against:
        worse = regressions(_common.read_figures(arguments.against).get(name), figures)
        sys.exit("\n".join(worse) if worse else None)
    if arguments.save:
        _common.write_figures(arguments.save, _common.read_figures(arguments.save) | {name: figures})


def compile_workload(target: str, workload: str, settings: Sequence[str] = ()) -> tuple[Any, dict[str, Any]]:
    """Compiles the program of a round; returns it and a description."""
    import jax

    from fedjax_bal.bench.workloads import WORKLOADS, simulation_of, workload_federation
    from fedjax_bal.engine.host import compile_for_backend
    from fedjax_bal.options import Execution
    from fedjax_bal.target import compiling_for

    options, model = read_settings(settings)
    execution = dataclasses.replace(Execution(strategy="vmap", devices=1, rounds_per_dispatch=1), **options)
    chosen = WORKLOADS[workload]
    sim = simulation_of(chosen, workload_federation(chosen), execution=execution, **model)
    with compiling_for(_accelerators.topology_devices(target)):
        lowered, began = sim.lower(sim.setting), time.perf_counter()
        compiled = compile_for_backend(lowered)
        seconds = time.perf_counter() - began
    about = {"target": target, "workload": workload, "precision": execution.precision, "jax": jax.__version__}
    # A lower bound: assumes that the whole program grows with the number of lanes, in the memory left by data and
    # states.
    lanes, needed = sim.setting.layout.width, compiled.memory_analysis().temp_size_in_bytes
    room = lanes * (_accelerators.TARGETS[target].usable - sim.device_bytes) // max(needed, 1)
    return compiled, about | {"lanes": lanes, "room": room, "compile_s": round(seconds, 1)}


def read_settings(settings: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Parses `execution.NAME=VALUE` as options of `Execution`, and `model.convolution=VALUE` as one of the model."""
    execution, model = {}, {}
    for setting in settings:
        key, _, value = setting.partition("=")
        section, _, name = key.partition(".")
        if section == "execution" and value:
            execution[name] = int(value) if value.isdigit() else value
        elif key == "model.convolution" and value:
            model[name] = value
        else:
            raise SystemExit(f"--set {setting}: give execution.NAME=VALUE or model.convolution=VALUE")
    return execution, model


def summary(loops: Sequence[_loops.Loop]) -> dict[str, Any]:
    """Summarises a local step, and all loops by path."""
    listed = {loop.path: loop.figures | {"in_graphs": loop.in_graphs} for loop in loops}
    return {"step": _loops.local_step(list(loops)).path, "loops": listed}


def report(figures: dict[str, Any]) -> list[str]:
    """Formats a line for the program, and one for each loop."""
    lines = [
        f"{figures['workload']} on {figures['target']}, {figures['precision']}, {figures['lanes']} lanes, "
        f"jax {figures['jax']}: compiled in {figures['compile_s']} s, {figures['temp_bytes'] / 1e9:.3f} GB temporary; "
        f"about {figures['room']:,} clients at a time would fit",
        "one turn of each loop (b: branch; *: a local step of all lanes); times are estimates, nothing was run",
        "loop          launches  copies          MB     GFLOP  in graphs  estimated ms",
    ]
    for path, loop in figures["loops"].items():
        graphs = "-" if loop["in_graphs"] is None else loop["in_graphs"]
        lines.append(
            f"{(path or 'program') + '*' * (path == figures['step']):12}  {loop['launches']:8}  {loop['copies']:6}  "
            f"{loop['bytes'] / 1e6:10.3f}  {loop['flops'] / 1e9:8.3f}  {graphs:>9}  {1e3 * loop['estimated_s']:12.3f}"
        )
    return lines


def largest_kernels(loops: Sequence[_loops.Loop], path: str, count: int) -> list[str]:
    """Formats a line for each of the slowest kernels of a loop."""
    kernels = next(loop.kernels for loop in loops if loop.path == path)
    return [
        f"  {1e3 * kernel.seconds:8.4f} ms {kernel.size / 1e6:10.3f} MB {kernel.flops / 1e9:8.3f} GFLOP  "
        f"{kernel.name}  {kernel.source[-90:]}"
        for kernel in sorted(kernels, key=lambda kernel: -kernel.seconds)[:count]
    ]


def regressions(saved: dict[str, Any] | None, figures: dict[str, Any]) -> list[str]:
    """Lists the metrics that exceed the saved ones by more than the tolerance."""
    if saved is None:
        return ["--against: the file has no figures of this target, workload and settings: save some first"]
    pairs = {name: (saved["loops"][saved["step"]][name], figures["loops"][figures["step"]][name]) for name in GUARDED}
    pairs["temp_bytes"] = saved["temp_bytes"], figures["temp_bytes"]
    return [f"{name}: {now} where {was} was saved" for name, (was, now) in pairs.items() if now > TOLERANCE * was]


def _prepare_xla(folder: Path, target: _accelerators.Target) -> None:
    """Sets environment variables before XLA and jax start: no device lookup, and a dump of the list of launches."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    if target.platform == "cuda":
        wanted = f"--xla_dump_to={folder} --xla_dump_hlo_module_re=.*dispatch.* --xla_dump_hlo_as_text"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {wanted}".strip()


def _arguments() -> argparse.Namespace:
    parser = _common.parser(__doc__)
    parser.add_argument("--target", choices=_accelerators.TARGETS, default="h200")
    parser.add_argument("--workload", default="W1")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="execution.*, model.convolution"
    )
    parser.add_argument("--kernels", type=int, default=0, help="how many of the longest kernels to list")
    parser.add_argument("--loop", help="whose kernels are listed, as the table names it; a local step's by default")
    parser.add_argument("--save", type=Path, help="add the figures to this file")
    parser.add_argument("--against", type=Path, help="compare with the figures in this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
