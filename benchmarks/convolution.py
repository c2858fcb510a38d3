"""Speed of local training with the "fast" convolution, against the plain one, on this machine.

    python benchmarks/convolution.py [--repeats 7]

Everything runs warm inside a compiled loop, interleaved; a figure is the median of the repeats. The plain form is slow,
so it runs fewer steps; results are per step, which is one forward pass and both gradients on one client's batch.
"""

import functools
import os
from collections.abc import Callable

import _common
import jax
import jax.numpy as jnp
from _common import median_seconds
from jax import lax

from fedjax_bal.models import build
from fedjax_bal.types import Array, Model, PyTree, Variables

CLIENTS = 10
BATCH = 50
STEPS = {"fast": 20, "plain": 1}


def main() -> None:
    repeats = _common.parser(__doc__, repeats=7).parse_args().repeats
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}, {os.cpu_count()} cores")
    print(f"\nlocal training, {CLIENTS} clients one after another, {STEPS['fast']} SGD steps each, batch {BATCH}")
    for name, shape in (("rebafl_fmnist", (28, 28, 1)), ("rebafl_cifar", (32, 32, 3)), ("tiny_bn", (28, 28, 1))):
        cells = {}
        for form in ("fast", "plain"):
            model = build(name, 10, shape, convolution=form)
            cells[form] = functools.partial(jax.jit(train_clients(model, STEPS[form])), *operands(model))
        each = {form: 1e3 * seconds / CLIENTS / STEPS[form] for form, seconds in median_seconds(cells, repeats).items()}
        ratio = each["plain"] / each["fast"]
        print(f"{name:16} fast {each['fast']:.2f} ms a step, plain {each['plain']:.2f}, ratio {ratio:.1f}", flush=True)


def operands(model: Model) -> tuple[Variables, Array, Array]:
    images = jax.random.normal(jax.random.key(1), (CLIENTS, BATCH, *model.input_shape))
    labels = jax.random.randint(jax.random.key(2), (CLIENTS, BATCH), 0, model.num_classes)
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
