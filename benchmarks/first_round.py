"""CPU seconds until the first round of small networks is done, against the same round written by hand in plain JAX.

Every measurement is a fresh process, and counts all of its threads from the call on: imports aren't included. "cold"
has no cache of compiled programs, "warm" has one with the programs of an earlier process. Medians of `--passes`
interleaved passes.

By hand, one jitted function trains a round of FedAvg and evaluates: it draws the order of each client's rows, maps over
the clients, each of which scans its batches, averages the parameters and counts the hits on the test images.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

NETWORKS = ("mlp", "vit")
CASES = tuple(f"{task} {network}" for network in NETWORKS for task in ("plain", "simulate", "check_model"))
CASES += ("simulate rebafl_fmnist",)
BATCH, RATE, COHORT = 50, 0.05, 5


def measure(task: str, name: str, cache: str | None) -> float:
    """Runs a task in this process, with a folder for compiled programs or without; returns its CPU seconds."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from fedjax_bal import LocalTraining, Participation, check_model, data, models, recipes, simulate

    class Perceptron(nn.Module):
        @nn.compact
        def __call__(self, images, train=False):
            return nn.Dense(10)(nn.relu(nn.Dense(64)(images.reshape(len(images), -1))))

    class Block(nn.Module):
        @nn.compact
        def __call__(self, tokens, train):
            attention = nn.MultiHeadDotProductAttention(num_heads=4, dropout_rate=0.1, deterministic=not train)
            normed = nn.LayerNorm()(tokens)
            tokens += nn.Dropout(0.1, deterministic=not train)(attention(normed, normed))
            hidden = nn.gelu(nn.Dense(64)(nn.LayerNorm()(tokens)))
            return tokens + nn.Dropout(0.1, deterministic=not train)(nn.Dense(32)(hidden))

    class ViT(nn.Module):
        @nn.compact
        def __call__(self, images, train=False):
            tokens = nn.Conv(32, (4, 4), (4, 4))(images).reshape(len(images), -1, 32)
            tokens += self.param("positions", nn.initializers.normal(0.02), (1, tokens.shape[1], 32))
            for _ in range(2):
                tokens = Block()(tokens, train)
            return nn.Dense(10, name="head")(nn.LayerNorm()(tokens).mean(1))

    def round_by_hand(net: nn.Module, rows: list[np.ndarray]) -> Any:
        sizes = np.array([len(own) for own in rows])
        steps = -(-sizes.max() // BATCH)
        table = np.stack([np.pad(own, (0, steps * BATCH - len(own))) for own in rows])

        @jax.jit
        def run(params, key, clients, table, sizes, images, labels, test):
            def loss(params, rows, real, key):
                pixels = images[rows] / 255.0
                logits: Any = net.apply(params, pixels, True, rngs={"dropout": key})
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels[rows])
                return jnp.where(real, losses, 0).sum() / jnp.maximum(real.sum(), 1)

            def train(client):
                order_key, dropout_key = jax.random.split(jax.random.fold_in(key, client))
                inside = jnp.arange(table.shape[1]) < sizes[client]
                order = jnp.argsort(jnp.where(inside, jax.random.uniform(order_key, inside.shape), 2.0))

                def step(params, batch):
                    number, rows, real = batch
                    value, grads = jax.value_and_grad(loss)(params, rows, real, jax.random.fold_in(dropout_key, number))
                    return jax.tree.map(lambda leaf, grad: leaf - RATE * grad, params, grads), value

                batches = (jnp.arange(steps), *(each.reshape(steps, BATCH) for each in (table[client][order], inside)))
                return jax.lax.scan(step, params, batches)

            trained, losses = jax.lax.map(train, clients)
            shares = sizes[clients] / sizes[clients].sum()
            params = jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), trained)

            def test_batch(hits, batch):
                pixels, labels = batch
                logits: Any = net.apply(params, pixels / 255.0)
                return hits + (logits.argmax(-1) == labels).sum(), None

            return params, losses.mean(), jax.lax.scan(test_batch, 0, test)[0]

        test = images[:600].reshape(2, 300, 28, 28, 1), labels[:600].reshape(2, 300)
        params = jax.jit(net.init)(jax.random.key(0), np.float32(images[:1]))
        clients = np.random.default_rng(0).choice(len(rows), COHORT, replace=False)
        return run(params, jax.random.key(1), clients, table, sizes, images, labels, test)

    jax.config.update("jax_enable_compilation_cache", cache is not None)
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (1000, 28, 28, 1)).astype(np.uint8)
    labels = rng.integers(0, 10, 1000)
    rows = data.partition.dirichlet(rng, labels, 10, alpha=1.0)
    net = {"vit": ViT, "mlp": Perceptron}.get(name, ViT)()
    began = time.process_time()
    if task == "plain":
        jax.block_until_ready(round_by_hand(net, rows))
        return time.process_time() - began
    shape = (28, 28, 1)
    model = models.from_linen(net, shape, 10) if name == "vit" else models.build(name, 10, shape)
    if task == "check_model":
        check_model(model)
        return time.process_time() - began
    federation = data.federate(images, labels, rows, num_classes=10)
    local = LocalTraining(batch_size=BATCH, optimizer=optax.sgd(RATE))
    cohort = Participation(clients_per_round=COHORT)
    test = images[:600], labels[:600]
    simulate(recipes.fedavg(), model, federation, test, rounds=1, seed=0, local=local, participation=cohort)
    return time.process_time() - began


def main() -> None:
    """Prints the medians of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES), help="default: all")
    parser.add_argument("--case", help="measure this case in this process")
    parser.add_argument("--cache", help="with compiled programs in this folder")
    options = parser.parse_args()
    if options.case:
        print(measure(*options.case.split(), options.cache))
        return

    def seconds(case: str, *more: str) -> float:
        command = [sys.executable, __file__, "--case", case, *more]
        return float(subprocess.check_output(command, text=True).split()[-1])

    cases = options.cases.split(",")
    with tempfile.TemporaryDirectory() as cache:
        for case in cases:
            seconds(case, "--cache", cache)
        turns = [
            {case: (seconds(case), seconds(case, "--cache", cache)) for case in cases} for _ in range(options.passes)
        ]
    for case in cases:
        cold, warm = (statistics.median(each) for each in zip(*(turn[case] for turn in turns), strict=True))
        print(f"{case}: cold {cold:.1f}, warm {warm:.1f}")


if __name__ == "__main__":
    main()
