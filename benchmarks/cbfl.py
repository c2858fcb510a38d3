"""The time of CBFL's components, and its cost relative to FedAvg.

    python benchmarks/cbfl.py [--model resnet20] [--size 32] [--classes 10] [--repeats 5] [--scale 1.0] [--json FILE]

Each component of a local step is compiled and timed separately, for one client on one device: the student's forward and
backward pass for 50 real images, and for 50 real images and 70 fakes in one batch; the teacher's forward pass for the
70 fakes; generating them; and a training step of the generator on 256 images. From these and the paper's constants
follows the duration of a round after warm-up: 10 clients of 500 images, 5 epochs, 2,000 steps of one generator for all
clients, the same every 7th round as in the authors' code, or one generator per client. Clients that train concurrently
(`vmap`) share the teacher, so that one pass covers all their fakes; this is compared with one teacher per client for
four clients. Random pixels; medians of interleaved passes. --scale makes generator, fakes and batches smaller by that
factor.
"""

import argparse
from collections.abc import Callable
from typing import Any

import _common
import jax
import jax.numpy as jnp
import optax

from fedjax_bal import models
from fedjax_bal.data.batches import append_rows
from fedjax_bal.models.generator import build_generator
from fedjax_bal.parts import SharedGenerator
from fedjax_bal.recipes import cbfl
from fedjax_bal.types import Batch

REAL, FAKES, GENERATED, WIDTH = 50, 70, 256, 128
CLIENTS, STEPS, ITERATIONS = 10, 50, 2000
INTERVAL = 7  # in the authors' code for CIFAR-100
ABREAST = 4
Work = Callable[[], Any]
PAPER, WARM_UP = 9.0 / 4.1, 0.8
"""Hours of CBFL relative to FedAvg, table 13: CIFAR-100, ResNet-20, 800 of 1,000 rounds of warm-up."""


def main() -> None:
    parser = _common.parser(__doc__, repeats=5, file=True)
    parser.add_argument("--model", default="resnet20", help="a model with batch normalisation (default resnet20)")
    parser.add_argument("--size", type=int, default=32, help="side of the images, a multiple of 4 (default 32)")
    parser.add_argument("--classes", type=int, default=10, help="classes (default 10)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the sizes of what is generated (default 1)")
    asked = parser.parse_args()
    took = _common.median_seconds(pieces(asked) | teachers(asked), asked.repeats)
    print("| piece | ms |\n|---|---|")
    for name, seconds in took.items():
        print(f"| {name} | {1000 * seconds:.1f} |")
    rounds = made_of(took)
    for name, parts in rounds.items():
        total = sum(parts.values())
        shares = ", ".join(f"{part} {100 * seconds / total:.0f}%" for part, seconds in parts.items())
        print(f"{name}: {total:.0f} s a round, one client after another ({shares})")
    fedavg, *others = (sum(parts.values()) for parts in rounds.values())
    ratios = {name: other / fedavg for name, other in zip(list(rounds)[1:], others, strict=True)}
    for name, ratio in ratios.items():
        whole = WARM_UP + (1 - WARM_UP) * ratio
        print(f"{name}: {ratio:.1f} times FedAvg after warm-up; over a run with {WARM_UP:.0%} of warm-up {whole:.1f}")
    print(f"paper: {PAPER:.1f} over a whole run, on its GPU, with 800 of 1,000 rounds of warm-up")
    _common.write_figures(asked.json, {"seconds": took, "rounds": rounds, "ratios": ratios})


def pieces(asked: argparse.Namespace) -> dict[str, Work]:
    """The components of a local step and of the generator's training; the last one takes ten steps."""
    shape, key = (asked.size, asked.size, 3), jax.random.key(0)
    model = models.build(asked.model, asked.classes, shape)
    width, fakes, batch = (max(2, int(asked.scale * one)) for one in (WIDTH, FAKES, GENERATED))
    net = build_generator(asked.classes, shape, width)
    variables, generator = model.init(key), net.init(key)
    labels = jnp.arange(fakes) % asked.classes
    images = jax.random.normal(key, (REAL, *shape))
    real = Batch(images, jnp.arange(REAL) % asked.classes, jnp.arange(REAL), jnp.ones(REAL, bool))
    both = append_rows(real, jax.random.normal(key, (fakes, *shape)), labels)
    (*_, made) = cbfl(generator="gaussian", fakes=fakes, warm_up=0).parts
    teach = jax.jit(lambda images: model.apply(variables, images, train=False)[0])
    outputs = teach(both.images[REAL:])

    def student(batch: Batch) -> Work:
        def loss(params: Any) -> Any:
            out, after = model.apply(variables._replace(params=params), batch.images, train=True, real=batch.seen)
            losses = optax.softmax_cross_entropy_with_integer_labels(out.logits, batch.labels)
            wrong = jnp.where(batch.real, losses, 0.0).sum() / REAL
            return (wrong if batch.extra is None else wrong + made.transfer_loss(out, outputs, REAL)), after.stats

        step = jax.jit(jax.grad(loss, has_aux=True))
        return lambda: step(variables.params)

    ten = SharedGenerator(width=width, iterations=10, batch_size=batch)
    make = jax.jit(lambda z: net.apply(generator, z, labels, train=False)[0])
    train = jax.jit(lambda key: ten.fit(key, model, variables))
    noise = jax.random.normal(key, (fakes, net.latent))
    return {
        f"student, {REAL} real": student(real),
        f"student, {REAL} real and {fakes} fakes": student(both),
        f"teacher, {fakes} fakes": lambda: teach(both.images[REAL:]),
        f"making {fakes} fakes": lambda: make(noise),
        f"ten steps of the generator, {batch} images": lambda: train(key),
    }


def teachers(asked: argparse.Namespace) -> dict[str, Work]:
    """The teacher's pass for the fakes of several clients, shared or separate."""
    shape, key, fakes = (asked.size, asked.size, 3), jax.random.key(0), max(2, int(asked.scale * FAKES))
    model = models.build(asked.model, asked.classes, shape)
    images, one = jax.random.normal(key, (ABREAST, fakes, *shape)), model.init(key)
    each = jax.tree.map(lambda leaf: jnp.stack([leaf] * ABREAST), one)
    logits = lambda variables, images: model.apply(variables, images, train=False)[0].logits
    shared, own = (jax.jit(jax.vmap(logits, (axis, 0))) for axis in (None, 0))
    return {
        f"teacher, {ABREAST} x {fakes} fakes, one for all": lambda: shared(one, images),
        f"teacher, {ABREAST} x {fakes} fakes, one for each": lambda: own(each, images),
    }


def made_of(took: dict[str, float]) -> dict[str, dict[str, float]]:
    """Computes the seconds of a round by component, for FedAvg and both kinds of generator."""
    alone, both, teacher, making, ten, *_ = took.values()
    training = ten / 10
    steps = CLIENTS * STEPS
    local = {"student": steps * both, "teacher": steps * teacher, "fakes": steps * making}
    return {
        "FedAvg": {"student": steps * alone},
        "CBFL, one generator for all": {**local, "generator": ITERATIONS * training},
        "CBFL, one generator for all every 7th round": {**local, "generator": ITERATIONS * training / INTERVAL},
        "CBFL, one for each client": {**local, "generator": CLIENTS * ITERATIONS * training},
    }


if __name__ == "__main__":
    main()
