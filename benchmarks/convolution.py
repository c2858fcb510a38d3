"""Speed of convolution and local training, "fast" against plain, on this machine.

    python benchmarks/convolution.py [--repeats 7] [--only layers|networks|devices|evaluation]

Everything runs warm inside a compiled loop, interleaved; a cell is the median of the repeats. A client-step is one
forward pass and both gradients on one client's batch. The plain form is slow, so it runs fewer steps; results are per
step.
"""

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import _common
import jax
import jax.numpy as jnp
from _common import median_seconds
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from fedjax_bal.models import build
from fedjax_bal.models.convolution import of_name
from fedjax_bal.types import Array, Model, PyTree, Variables

CLIENTS = 10
LOOP = {"fast": 4, "plain": 1}
STEPS = {"fast": 20, "plain": 1}


class Layer(NamedTuple):
    """A convolution: image side, channels in and out, kernel side, padding."""

    name: str
    side: int
    inputs: int
    outputs: int
    size: int
    pad: int


LAYERS = (
    Layer("rebafl_fmnist 0", 28, 1, 16, 5, 0),
    Layer("rebafl_fmnist 1", 12, 16, 32, 5, 1),
    Layer("rebafl_cifar 0", 32, 3, 16, 5, 0),
    Layer("rebafl_cifar 1", 14, 16, 32, 5, 1),
    Layer("rebafl_cifar 2", 6, 32, 64, 3, 1),
    Layer("fedavg_cnn 0", 28, 1, 32, 5, 2),
    Layer("fedavg_cnn 1", 14, 32, 64, 5, 2),
)


def main() -> None:
    parser = _common.parser(__doc__, repeats=7)
    sections = {"layers": layers, "networks": training, "devices": devices, "evaluation": evaluation}
    parser.add_argument("--only", choices=sections, help="run one section")
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 2)
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}, {os.cpu_count()} cores")
    for name, section in sections.items():
        if arguments.only in (None, name):
            section(arguments.repeats)


def layers(repeats: int) -> None:
    print(f"\n{'layer':16} {'batch':>5} {'form':>5} | one after another | stacked {CLIENTS} clients  (client-steps/s)")
    for layer in LAYERS:
        for batch in (10, 50):
            cells = {
                (form, mode): functools.partial(layer_loop(layer, form, mode), *layer_operands(layer, batch))
                for form in ("fast", "plain")
                for mode in ("map", "vmap")
            }
            rates = {
                cell: CLIENTS * LOOP[cell[0]] / seconds for cell, seconds in median_seconds(cells, repeats).items()
            }
            for form in ("fast", "plain"):
                print(f"{layer.name:16} {batch:5} {form:>5} | {rates[form, 'map']:17.0f} | {rates[form, 'vmap']:17.0f}")
            ratios = [rates["fast", mode] / rates["plain", mode] for mode in ("map", "vmap")]
            print(f"{'':22} ratio | {ratios[0]:17.1f} | {ratios[1]:17.1f}", flush=True)


def training(repeats: int, batch: int = 50) -> None:
    print(f"\nlocal training, {CLIENTS} clients one after another, {STEPS['fast']} SGD steps each, batch {batch}")
    for name, shape in (("rebafl_fmnist", (28, 28, 1)), ("rebafl_cifar", (32, 32, 3)), ("tiny_bn", (28, 28, 1))):
        cells = {}
        for form in ("fast", "plain"):
            model = build(name, 10, shape, convolution=form)
            cells[form] = functools.partial(
                jax.jit(train_clients(model, STEPS[form])), *training_operands(model, batch)
            )
        each = {form: 1e3 * seconds / CLIENTS / STEPS[form] for form, seconds in median_seconds(cells, repeats).items()}
        ratio = each["plain"] / each["fast"]
        print(f"{name:16} fast {each['fast']:.2f} ms a step, plain {each['plain']:.2f}, ratio {ratio:.1f}", flush=True)


def devices(repeats: int, batch: int = 50) -> None:
    print("\nlocal training of rebafl_fmnist: one XLA device with all cores, against two XLA devices")
    model = build("rebafl_fmnist", 10, (28, 28, 1))
    variables, images, labels = training_operands(model, batch)
    mesh = jax.make_mesh((2,), ("client",), axis_types=(AxisType.Auto,))
    specs = (PartitionSpec(), PartitionSpec("client"), PartitionSpec("client"))
    split = jax.shard_map(
        train_clients(model, STEPS["fast"]),
        mesh=mesh,
        in_specs=specs,
        out_specs=PartitionSpec("client"),
        check_vma=False,
    )
    placed = [
        jax.device_put(operand, jax.NamedSharding(mesh, spec))
        for operand, spec in zip((variables, images, labels), specs, strict=True)
    ]
    cells = {
        "one": functools.partial(jax.jit(train_clients(model, STEPS["fast"])), variables, images, labels),
        "two": functools.partial(jax.jit(split), *placed),
    }
    each = {count: 1e3 * seconds / CLIENTS / STEPS["fast"] for count, seconds in median_seconds(cells, repeats).items()}
    print(f"one {each['one']:.2f} ms a step, two {each['two']:.2f}, ratio {each['one'] / each['two']:.2f}", flush=True)


def evaluation(repeats: int, rows: int = 2000) -> None:
    print(f"\nrebafl_fmnist, forward pass over {rows} images in evaluation mode")
    model = build("rebafl_fmnist", 10, (28, 28, 1))
    variables = model.init(jax.random.key(0))
    images = jax.random.normal(jax.random.key(1), (rows, 28, 28, 1))

    def predict(variables: Variables, batches: Array) -> Array:
        return lax.map(lambda images: model.apply(variables, images, train=False)[0].logits.argmax(-1), batches)

    cells = {
        batch: functools.partial(jax.jit(predict), variables, images.reshape(-1, batch, 28, 28, 1))
        for batch in (25, 50, 100, 200, 500, 1000)
    }
    for batch, seconds in median_seconds(cells, repeats).items():
        print(f"batch {batch:5}: {1e3 * seconds:.1f} ms", flush=True)


def layer_operands(layer: Layer, batch: int) -> tuple[Array, Array]:
    shape = (CLIENTS, batch, layer.side, layer.side, layer.inputs)
    kernels = (CLIENTS, layer.size, layer.size, layer.inputs, layer.outputs)
    return jax.random.normal(jax.random.key(0), shape), 0.1 * jax.random.normal(jax.random.key(1), kernels)


def layer_loop(layer: Layer, form: str, mode: str) -> Callable[[Array, Array], Array]:
    """Builds a loop of a few steps of every client, each with a forward pass and both gradients."""
    pads = ((layer.pad, layer.pad),) * 2
    convolve = functools.partial(
        of_name(form), window_strides=(1, 1), padding=pads, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )

    def client(operands: tuple[Array, Array]) -> tuple[Array, Array]:
        def step(_: int, operands: tuple[Array, Array]) -> tuple[Array, Array]:
            outputs, pullback = jax.vjp(convolve, *operands)
            return jax.tree.map(lambda value, gradient: value - 1e-6 * gradient, operands, pullback(outputs))

        return lax.fori_loop(0, LOOP[form], step, operands)

    over_clients = {"map": functools.partial(lax.map, client), "vmap": jax.vmap(client)}[mode]
    return jax.jit(lambda images, kernels: over_clients((images, kernels)))


def training_operands(model: Model, batch: int) -> tuple[Variables, Array, Array]:
    images = jax.random.normal(jax.random.key(1), (CLIENTS, batch, *model.input_shape))
    labels = jax.random.randint(jax.random.key(2), (CLIENTS, batch), 0, model.num_classes)
    return model.init(jax.random.key(0)), images, labels


def train_clients(model: Model, steps: int) -> Callable[[Variables, Array, Array], Variables]:
    """Trains every client with SGD from common weights, one client after another."""

    def loss(params: PyTree, stats: PyTree, images: Array, labels: Array) -> tuple[Array, PyTree]:
        outputs, variables = model.apply(Variables(params, stats), images, train=True)
        picked = jnp.take_along_axis(jax.nn.log_softmax(outputs.logits), labels[:, None], 1)
        return -picked.mean(), variables.stats

    def train(variables: Variables, images: Array, labels: Array) -> Variables:
        def step(_: int, variables: Variables) -> Variables:
            gradient, stats = jax.grad(loss, has_aux=True)(*variables, images, labels)
            params = jax.tree.map(lambda value, slope: value - 0.01 * slope, variables.params, gradient)
            return Variables(params, stats)

        return lax.fori_loop(0, steps, step, variables)

    return lambda variables, images, labels: lax.map(lambda data: train(variables, *data), (images, labels))


if __name__ == "__main__":
    main()
