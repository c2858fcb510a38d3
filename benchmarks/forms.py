"""Times every form of a convolution on the workloads' layers: evidence for the rules in models/convolution.

    NPROC=1 python benchmarks/forms.py [--layers W2 W5] [--repeats 7]

One client, one CPU device, warm, inside a compiled loop. The forms of a layer are interleaved, and a cell is the
minimum processor time of the repeats in milliseconds, which other work on the machine hardly changes. A star marks the
form that the rules of "fast" choose, a plus that of "builtin"; "-" is a form that the shape rules out. Image gradients
are convolutions too; "rule" is the one in the form that "fast" chooses.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import _common
import jax
from jax import lax

from fedjax_bal.models.convolution import automatic, builtin, forward, gradients, rules
from fedjax_bal.models.convolution.geometry import Geometry, pad_images
from fedjax_bal.types import Array

LOOP = 10


class Layer(NamedTuple):
    """A convolution: batch, image side, channels in and out, kernel side, stride, padding."""

    batch: int
    side: int
    inputs: int
    outputs: int
    size: int
    stride: int
    pad: int

    @property
    def geometry(self) -> Geometry:
        """Returns the geometry of its kernel positions."""
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

FORWARD = ("direct", "by_patches", "by_blocks", "by_wide_kernel", "by_rows", "builtin")
BACKWARD = ("direct", "by_patches", "by_blocks", "by_rows", "builtin", "by_depth")
IMAGES = ("spread", "rule", "builtin")


def main() -> None:
    parser = _common.parser(__doc__, repeats=7)
    parser.add_argument("--layers", nargs="*", default=[""], help="only layers whose name starts so")
    arguments = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}, {automatic.instruction_set()}; milliseconds")
    for name, layer in LAYERS.items():
        if name.startswith(tuple(arguments.layers)):
            for line in report(name, layer, arguments.repeats):
                print(line, flush=True)


def report(name: str, layer: Layer, repeats: int) -> list[str]:
    """Formats one line each for the forward pass, the weight gradient and the image gradient."""
    images, kernel, cotangent = operands(layer)
    geometry, size = layer.geometry, (layer.size, layer.size)
    of_forward = {way: getattr(forward, way) for way in FORWARD[:-1]} | {"builtin": builtin.convolve}
    of_weights = {way: getattr(gradients, way) for way in BACKWARD[:-2]}
    of_weights |= {"builtin": builtin.weight_gradient, "by_depth": builtin.gradient_by_depth}
    convolving = lambda form: lambda images, kernel: form(images, kernel, geometry)
    deriving = lambda form: lambda images, cotangent: form(images, cotangent, size, geometry)
    ways = {way: convolving(form) for way, form in of_forward.items()}
    backs = {way: deriving(form) for way, form in of_weights.items()}
    for forms in (ways, backs):
        if layer.stride > 1:
            del forms["by_rows"]
    if layer.inputs > rules.FEW_INPUTS:
        del backs["by_blocks"]
    chosen = {
        mark: (convolving(maps.convolve), deriving(maps.gradient), functools.partial(by_phases, layer, maps.back))
        for mark, maps in (("*", rules.FORMS["fast"].alone), ("+", rules.FORMS["builtin"].alone))
    }
    phases = {"rule": chosen["*"][2], "builtin": functools.partial(by_phases, layer, builtin.convolve)}
    if layer.stride > 1:
        phases["spread"] = functools.partial(by_spreading, layer)
    work = (
        ("forward", ways, (images, kernel), FORWARD),
        ("weights", backs, (images, cotangent), BACKWARD),
        ("images", phases, (cotangent, kernel), IMAGES),
    )
    return [
        line(
            name,
            what,
            measured(forms, pair, repeats),
            {mark: named(own[i], forms, pair) for mark, own in chosen.items()},
            names,
        )
        for i, (what, forms, pair, names) in enumerate(work)
    ]


def operands(layer: Layer) -> tuple[Array, Array, Array]:
    """Draws two sets of images, kernels and cotangents."""
    result = layer.geometry.output_size((layer.side,) * 2, (layer.size,) * 2)
    shapes = (
        (layer.batch, layer.side, layer.side, layer.inputs),
        (layer.size, layer.size, layer.inputs, layer.outputs),
        (layer.batch, *result, layer.outputs),
    )
    keys = jax.random.split(jax.random.key(0), 3)
    images, kernel, cotangent = (jax.random.normal(key, (2, *shape)) for key, shape in zip(keys, shapes, strict=True))
    return images, kernel, cotangent


def named(rule: Callable, forms: dict[str, Callable], pair: tuple[Array, Array]) -> str:
    """Returns the name of the form that a rule chooses: the form with the same trace."""
    first, second = (operand[0] for operand in pair)
    traced = str(jax.make_jaxpr(rule)(first, second))
    same = [way for way, form in forms.items() if str(jax.make_jaxpr(form)(first, second)) == traced]
    return same[0] if same else ""


def by_spreading(layer: Layer, cotangent: Array, kernel: Array) -> Array:
    """Computes the image gradient as a convolution of the cotangent dilated with zeros."""
    spread = pad_images(cotangent, ((0, 0), (0, 0)), layer.geometry.strides)
    lead = layer.size - 1 - layer.pad
    pads = (lead, layer.side + layer.size - 1 - spread.shape[1] - lead)
    return forward.direct(spread, kernel[::-1, ::-1].transpose(0, 1, 3, 2), Geometry((1, 1), (pads, pads)))


def by_phases(layer: Layer, convolve: Callable, cotangent: Array, kernel: Array) -> Array:
    """Computes the image gradient as the package does, with a given form of the convolution."""
    image = (layer.side, layer.side)
    phases, back = gradients.phase_kernel(kernel, layer.geometry, image, cotangent.shape[1:3])
    return gradients.interleave_phases(convolve(cotangent, phases, back), layer.geometry.strides, image)


def measured(forms: dict[str, Callable], pair: tuple[Array, Array], repeats: int) -> dict[str, float]:
    """Measures the milliseconds of each form, interleaved."""

    def looped(form: Callable, first: Array, second: Array) -> Array:
        turn = lambda i: form(
            *(lax.dynamic_index_in_dim(operand, i % 2, keepdims=False) for operand in (first, second))
        )
        return lax.fori_loop(1, LOOP, lambda i, _: turn(i), turn(0))

    programs = {way: functools.partial(jax.jit(functools.partial(looped, form)), *pair) for way, form in forms.items()}
    return {way: 1e3 * spent / LOOP for way, spent in _common.least_cpu_seconds(programs, repeats).items()}


def line(name: str, what: str, spent: dict[str, float], chosen: dict[str, str], ways: tuple[str, ...]) -> str:
    marks = {way: "".join(mark for mark, own in chosen.items() if own == way) for way in ways}
    cells = [f"{way} {spent[way]:.3f}{marks[way]}" if way in spent else f"{way} -" for way in ways]
    return f"{name:12} {what:8} " + "  ".join(cells)


if __name__ == "__main__":
    main()
