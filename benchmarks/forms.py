"""Every form of a convolution on the layers of the workloads: evidence for the rules in fedjax_bal/models/forms.

    python benchmarks/forms.py [--layers W2 W5] [--repeats 7]

One client, one CPU device, warm, inside a compiled loop; the forms of a layer take turns and a cell is the median of
the repeats in milliseconds. A star marks the form that the rules choose; "-" a form that the shape rules out. Run it
with nothing else on the machine, pinned to one core: `taskset -c 0 python benchmarks/forms.py`.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import _common
import jax
from jax import lax

from fedjax_bal.models.forms import forward, gradients, rules
from fedjax_bal.models.geometry import Geometry, pad_images
from fedjax_bal.types import Array

LOOP = 10


class Layer(NamedTuple):
    """A convolution: batch, side of the image, channels in and out, side of the kernel, stride, padding."""

    batch: int
    side: int
    inputs: int
    outputs: int
    size: int
    stride: int
    pad: int

    @property
    def geometry(self) -> Geometry:
        """The positions of its kernel."""
        return Geometry((self.stride,) * 2, ((self.pad,) * 2,) * 2)


LAYERS = {
    "W1 first": Layer(10, 32, 3, 32, 3, 1, 1),
    "W1 second": Layer(10, 32, 32, 64, 3, 1, 0),
    "W2 first": Layer(50, 28, 1, 16, 5, 1, 2),
    "W2 second": Layer(50, 14, 16, 32, 5, 1, 2),
    "W4 first": Layer(20, 28, 1, 12, 5, 2, 0),
    "W4 second": Layer(20, 12, 12, 18, 3, 2, 0),
    "W4 third": Layer(20, 5, 18, 24, 2, 1, 0),
    "W5 stem": Layer(50, 32, 3, 16, 3, 1, 1),
    "W5 16": Layer(50, 32, 16, 16, 3, 1, 1),
    "W5 16 to 32": Layer(50, 32, 16, 32, 3, 2, 1),
    "W5 32": Layer(50, 16, 32, 32, 3, 1, 1),
    "W5 32 to 64": Layer(50, 16, 32, 64, 3, 2, 1),
    "W5 64": Layer(50, 8, 64, 64, 3, 1, 1),
    "W5 shortcut": Layer(50, 32, 16, 32, 1, 2, 0),
}

FORWARD = ("direct", "by_patches", "by_blocks", "by_wide_kernel", "by_rows")
BACKWARD = ("direct", "by_patches", "by_blocks", "by_rows")


def main() -> None:
    parser = _common.parser(__doc__, repeats=7)
    parser.add_argument("--layers", nargs="*", default=[""], help="only layers whose name starts so")
    arguments = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}; milliseconds")
    for name, layer in LAYERS.items():
        if name.startswith(tuple(arguments.layers)):
            for line in report(name, layer, arguments.repeats):
                print(line, flush=True)


def report(name: str, layer: Layer, repeats: int) -> list[str]:
    """A line for the forward pass, one for the weight gradient, one for the image gradient."""
    images, kernel, cotangent = operands(layer)
    geometry, size = layer.geometry, (layer.size, layer.size)
    ways = {way: functools.partial(getattr(forward, way), geometry=geometry) for way in FORWARD}
    backs = {way: functools.partial(getattr(gradients, way), size=size, geometry=geometry) for way in BACKWARD}
    for forms in (ways, backs):
        if layer.stride > 1:
            del forms["by_rows"]
    if layer.inputs > rules.FEW_INPUTS:
        del backs["by_blocks"]
    chosen = called(rules.convolve, ways, images[0], kernel[0], geometry)
    back = called(rules.weight_gradient, backs, images[0], cotangent[0], size, geometry)
    lines = [
        line(name, "forward", measured(ways, (images, kernel), repeats), chosen, FORWARD),
        line(name, "weights", measured(backs, (images, cotangent), repeats), back, BACKWARD),
    ]
    if layer.inputs > rules.FEW_INPUTS and layer.stride > 1:
        forms = {"spread": functools.partial(by_spreading, layer), "phases": functools.partial(by_phases, layer)}
        lines.append(line(name, "images", measured(forms, (cotangent, kernel), repeats), "phases", tuple(forms)))
    return lines


def operands(layer: Layer) -> tuple[Array, Array, Array]:
    """Two sets of images, kernels and cotangents."""
    result = layer.geometry.output_size((layer.side,) * 2, (layer.size,) * 2)
    shapes = (
        (layer.batch, layer.side, layer.side, layer.inputs),
        (layer.size, layer.size, layer.inputs, layer.outputs),
        (layer.batch, *result, layer.outputs),
    )
    keys = jax.random.split(jax.random.key(0), 3)
    images, kernel, cotangent = (jax.random.normal(key, (2, *shape)) for key, shape in zip(keys, shapes, strict=True))
    return images, kernel, cotangent


def called(rule: Callable, forms: dict[str, functools.partial], *arguments: object) -> str:
    """Name of the form that a rule chooses: the one with the same trace."""
    traced = str(jax.make_jaxpr(lambda first, second: rule(first, second, *arguments[2:]))(*arguments[:2]))
    same = [way for way, form in forms.items() if str(jax.make_jaxpr(form)(*arguments[:2])) == traced]
    return same[0] if same else ""


def by_spreading(layer: Layer, cotangent: Array, kernel: Array) -> Array:
    """The image gradient as a convolution of the cotangent spread apart with zeros."""
    spread = pad_images(cotangent, ((0, 0), (0, 0)), layer.geometry.strides)
    lead = layer.size - 1 - layer.pad
    pads = (lead, layer.side + layer.size - 1 - spread.shape[1] - lead)
    return forward.direct(spread, kernel[::-1, ::-1].transpose(0, 1, 3, 2), Geometry((1, 1), (pads, pads)))


def by_phases(layer: Layer, cotangent: Array, kernel: Array) -> Array:
    """The image gradient as the package computes it."""
    image = (layer.side, layer.side)
    phases, back = gradients.phase_kernel(kernel, layer.geometry, image, cotangent.shape[1:3])
    return gradients.interleave_phases(rules.convolve(cotangent, phases, back), layer.geometry.strides, image)


def measured(forms: dict[str, Callable], pair: tuple[Array, Array], repeats: int) -> dict[str, float]:
    """Milliseconds of each form, the forms in turns."""

    def looped(form: Callable, first: Array, second: Array) -> Array:
        turn = lambda i: form(
            *(lax.dynamic_index_in_dim(operand, i % 2, keepdims=False) for operand in (first, second))
        )
        return lax.fori_loop(1, LOOP, lambda i, _: turn(i), turn(0))

    programs = {way: functools.partial(jax.jit(functools.partial(looped, form)), *pair) for way, form in forms.items()}
    return {way: 1e3 * spent / LOOP for way, spent in _common.median_seconds(programs, repeats).items()}


def line(name: str, what: str, spent: dict[str, float], chosen: str, ways: tuple[str, ...]) -> str:
    cells = [f"{way} {spent[way]:.3f}{'*' if way == chosen else ''}" if way in spent else f"{way} -" for way in ways]
    return f"{name:12} {what:8} " + "  ".join(cells)


if __name__ == "__main__":
    main()
