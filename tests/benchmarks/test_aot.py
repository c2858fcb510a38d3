"""Counting in optimized programs, on one small enough to count by hand; and the compiler itself, if it is there."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import _hlo
import _loops
import aot
from _accelerators import TARGETS

pytestmark = pytest.mark.slow

BENCHMARKS = Path(aot.__file__).parent

PROGRAM = """\
HloModule jit_dispatch, is_scheduled=true, entry_computation_layout={(f32[8,4]{1,0})->f32[8,4]{1,0}}

%fused_dot (a: f32[8,4], b: f32[4,4]) -> f32[8,4] {
  %a = f32[8,4]{1,0} parameter(0)
  %b = f32[4,4]{1,0} parameter(1)
  ROOT %dot.1 = f32[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%fused_update (all: f32[100,4], new: f32[1,4], place: s32[]) -> f32[100,4] {
  %all = f32[100,4]{1,0} parameter(0)
  %new = f32[1,4]{1,0} parameter(1)
  %place = s32[] parameter(2)
  %zero = s32[] constant(0)
  ROOT %put = f32[100,4]{1,0} dynamic-update-slice(%all, %new, %place, %zero)
}

%step (carry.1: (s32[], f32[8,4], f32[100,4])) -> (s32[], f32[8,4], f32[100,4]) {
  %carry.1 = (s32[], f32[8,4]{1,0}, /*index=2*/f32[100,4]{1,0}) parameter(0)
  %turn = s32[] get-tuple-element(%carry.1), index=0
  %lanes = f32[8,4]{1,0} get-tuple-element(%carry.1), index=1
  %ends = f32[100,4]{1,0} get-tuple-element(%carry.1), index=2
  %kept = f32[8,4]{1,0} copy(%lanes)
  %kernel = f32[4,4]{1,0} constant({...})
  %trained = f32[8,4]{1,0} fusion(%kept, %kernel), kind=kCustom, calls=%fused_dot, metadata={op_name="dot"}
  %row = f32[1,4]{1,0} slice(%trained), slice={[0:1], [0:4]}
  %written = f32[100,4]{1,0} fusion(%ends, %row, %turn), kind=kLoop, calls=%fused_update
  ROOT %next = (s32[], f32[8,4]{1,0}, f32[100,4]{1,0}) tuple(%turn, %trained, %written)
}

%goes_on (carry.2: (s32[], f32[8,4], f32[100,4])) -> pred[] {
  %carry.2 = (s32[], f32[8,4]{1,0}, f32[100,4]{1,0}) parameter(0)
  %count = s32[] get-tuple-element(%carry.2), index=0
  %most = s32[] constant(5)
  ROOT %less = pred[] compare(%count, %most), direction=LT
}

%same (x.1: f32[8,4]) -> f32[8,4] {
  ROOT %x.1 = f32[8,4]{1,0} parameter(0)
}

%twice (x.2: f32[8,4]) -> f32[8,4] {
  %x.2 = f32[8,4]{1,0} parameter(0)
  ROOT %sum = f32[8,4]{1,0} add(%x.2, %x.2)
}

ENTRY %main (x.3: f32[8,4]) -> f32[8,4] {
  %x.3 = f32[8,4]{1,0} parameter(0)
  %none = s32[] constant(0)
  %empty = f32[100,4]{1,0} broadcast(%none), dimensions={}
  %first = (s32[], f32[8,4]{1,0}, f32[100,4]{1,0}) tuple(%none, %x.3, %empty)
  %loop = (s32[], f32[8,4]{1,0}, f32[100,4]{1,0}) while(%first), condition=%goes_on, body=%step
  %last = f32[8,4]{1,0} get-tuple-element(%loop), index=1
  %which = s32[] get-tuple-element(%loop), index=0
  ROOT %end = f32[8,4]{1,0} conditional(%which, %last, %last), branch_computations={%same, %twice}
}
"""

THUNKS = """\
000: kCommandBuffer [source | sink]
    001: kCustomKernel [source | sink] broadcast
002: kWhile [prev=000 (1) | sink]
condition:
    003: kCustomKernel [source | sink] less
  body:
    000: kCommandBuffer [source | sink]
        004: kCopy [source | sink] kCopy
        005: kCustomKernel [source | sink] trained
    006: kCustomKernel [source | sink] written
007: kConditional [prev=002 (1) | sink]
  branch_0:
    008: kCustomKernel [source | sink] sum
"""

H200 = TARGETS["h200"]
SHAPES = (2, 3, 9, 7, 16), (2, 3, 3, 16, 32)


def loops(thunks=THUNKS):
    return {loop.path: loop for loop in _loops.loops_of(PROGRAM, H200, "float32", thunks)}


def test_loops_and_branches_are_counted_apart():
    counted = {path: (len(loop.kernels), loop.figures["copies"]) for path, loop in loops().items()}
    assert counted == {"": (1, 0), "1": (4, 1), "2b0": (0, 0), "2b1": (1, 0)}
    assert _loops.local_step(list(loops().values())).path == "1"


def test_bytes_and_operations_are_those_counted_by_hand():
    found = {kernel.name: (kernel.size, kernel.flops) for kernel in loops()["1"].kernels}
    lanes, kernel, row = 8 * 4 * 4, 4 * 4 * 4, 4 * 4
    assert found == {
        "kept": (2 * lanes, 0),
        "trained": (lanes + kernel + lanes, 2 * 8 * 4 * 4),
        "row": (2 * row, 0),
        "written": (row + 4 + row, 0),  # in place: the row is read and written, and its place is read
    }


def test_a_convolution_counts_each_tap_once():
    line = "%c = f32[2,6,6,8]{3,2,1,0} convolution(%i, %k), window={size=3x3}, dim_labels=b01f_01io->b01f"
    text = f"""ENTRY %main (i: f32[2,8,8,4], k: f32[3,3,4,8]) -> f32[2,6,6,8] {{
  %i = f32[2,8,8,4]{{3,2,1,0}} parameter(0)
  %k = f32[3,3,4,8]{{3,2,1,0}} parameter(1)
  ROOT {line}
}}"""
    program = _hlo.parse(text)
    (instruction,) = program.kernels(program.entry)
    assert program.flops(program.entry, instruction) == 2 * (2 * 6 * 6 * 8) * (3 * 3 * 4)
    spread = _hlo.parse(text.replace("size=3x3", "size=3x3 lhs_dilate=1x3"))
    (instruction,) = spread.kernels(spread.entry)
    assert spread.flops(spread.entry, instruction) == 2 * (2 * 6 * 6 * 8) * (3 * 4)


def test_a_product_without_patches_counts_its_operations_for_all_clients():
    text = """ENTRY %main (x: f32[50,327680], k: f32[50,288,64]) -> f32[50,1,9000,64] {
  %x = f32[50,327680]{1,0} parameter(0)
  %k = f32[50,288,64]{2,1,0} parameter(1)
  ROOT %c = f32[50,1,9000,64]{3,2,1,0} custom-call(%x, %k), metadata={op_name="vmap(implicit_product)/pallas_call"}
}"""
    program = _hlo.parse(text)
    (instruction,) = program.kernels(program.entry)
    assert program.flops(program.entry, instruction) == 2 * 50 * 9000 * 288 * 64
    assert program.traffic(program.entry, instruction) == 4 * 50 * (327680 + 288 * 64 + 9000 * 64)


def test_a_copy_beside_other_work_counts_what_it_moves_but_no_time():
    text = """ENTRY %main (x: f32[8,4]) -> f32[2,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %begun = ((f32[8,4]{1,0}), f32[2,4]{1,0:S(1)}, s32[]) slice-start(%x), slice={[0:2], [0:4]}
  ROOT %done = f32[2,4]{1,0:S(1)} slice-done(%begun)
}"""
    ((kernel,),) = [loop.kernels for loop in _loops.loops_of(text, TARGETS["v5e"], "float32")]
    assert (kernel.size, kernel.seconds, kernel.copies) == (2 * 2 * 4 * 4, 0.0, True)


def test_a_kernel_takes_as_long_as_its_memory_its_products_or_its_launch():
    times = {kernel.name: kernel.seconds for kernel in loops()["1"].kernels}
    assert set(times.values()) == {_loops.LAUNCH_S}
    large = PROGRAM.replace("f32[8,4]", "f32[8000000,4]")
    (copied,) = [kernel for kernel in _loops.loops_of(large, H200, "float32")[1].kernels if kernel.copies]
    assert copied.seconds == pytest.approx(2 * 8e6 * 16 / (0.85 * 4.8e12))


def test_worse_figures_are_named():
    saved = {"temp_bytes": 10, **aot.summary(list(loops().values()))}
    assert aot.regressions(saved, saved) == []
    more = json.loads(json.dumps(saved))
    more["loops"]["1"]["copies"], more["temp_bytes"] = 2, 11
    assert aot.regressions(saved, more) == ["copies: 2 where 1 was saved", "temp_bytes: 11 where 10 was saved"]
    assert "no figures" in aot.regressions(None, saved)[0]


needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None, reason="the extra aot is not installed"
)


@needs_compiler
@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="there Pallas looks for the GPU itself")
@pytest.mark.parametrize(("precision", "multiplies"), [("highest", "fma.rn.f32"), ("tensorfloat32", "wgmma")])
def test_products_without_patches_are_compiled_for_a_gpu(tmp_path, precision, multiplies):
    """In full float32 by ordinary arithmetic, in TensorFloat-32 by tensor cores."""
    program = f"""
import jax, jax.numpy as jnp, _accelerators
from fedjax_bal.models.convolution import of_name
from fedjax_bal.target import compiling_for
devices = _accelerators.topology_devices("h200")
where = jax.sharding.SingleDeviceSharding(devices[0])
images, kernel = (jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where) for shape in {SHAPES})
loss = lambda images, kernel: (of_name("implicit")(images, kernel, (2, 2), "SAME") ** 2).sum()
with compiling_for(devices), jax.default_matmul_precision("{precision}"):
    text = jax.jit(jax.vmap(jax.grad(loss, (0, 1)))).lower(images, kernel).compile().as_text()
print(text.count("implicit_product)/pallas_call"))
"""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")]),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
    }
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment)
    assert int(shown.stdout) == 3
    kernels = [text for text in (file.read_text() for file in tmp_path.glob("*.ptx")) if "implicit_product" in text]
    assert kernels and all(multiplies in text for text in kernels)


@needs_compiler
def test_w3_is_compiled_for_a_gpu_and_guarded(tmp_path):
    run = [sys.executable, str(BENCHMARKS / "aot.py"), "--workload", "W3", "--set", "execution.chunk=2"]
    file = tmp_path / "figures.json"
    environment = os.environ | {"PYTHONPATH": str(BENCHMARKS.parent) + os.pathsep + os.environ.get("PYTHONPATH", "")}
    shown = subprocess.run([*run, "--save", str(file)], check=True, capture_output=True, text=True, env=environment)
    assert "times are estimates, nothing was run" in shown.stdout
    (figures,) = json.loads(file.read_text()).values()
    assert figures["room"] > figures["lanes"] == 2
    step = figures["loops"][figures["step"]]
    assert step["launches"] == step["in_graphs"] < 25
    # Of the first layer's products one is missing; XLA pads one of the last's.
    assert step["flops"] == pytest.approx(2 * (2 * 10) * (2 * 784 * 64 + 3 * 64 * 10), rel=0.02)
    subprocess.run([*run, "--against", str(file)], check=True, capture_output=True, env=environment)
