"""CPU seconds until the first round of small networks is done, against a first step in plain JAX.

Every measurement is a fresh process without a cache of compiled programs, and counts all of its threads from the call
on: imports aren't included. Medians of `--passes` interleaved passes.
"""

import argparse
import statistics
import subprocess
import sys
import time
from typing import Any

CASES = ("plain vit", "simulate vit", "check_model vit", "simulate mlp", "simulate rebafl_fmnist", "check_model mlp")


def measure(task: str, name: str) -> float:
    """Runs a task in this process; returns its CPU seconds."""
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    from fedjax_bal import LocalTraining, Participation, check_model, data, models, recipes, simulate

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

    jax.config.update("jax_enable_compilation_cache", False)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (1000, 28, 28, 1)).astype(np.uint8)
    labels = rng.integers(0, 10, 1000)
    began = time.process_time()
    if task == "plain":
        net = ViT()
        batch = np.float32(images[:50]) / 255

        @jax.jit
        def step(params, key):
            def loss(params):
                logits: Any = net.apply(params, batch, True, rngs={"dropout": key})
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels[:50]).mean()

            grads = jax.grad(loss)(params)
            return jax.tree.map(lambda leaf, grad: leaf - 0.05 * grad, params, grads)

        params = jax.jit(net.init)(jax.random.key(0), jnp.asarray(batch))
        jax.block_until_ready(step(params, jax.random.key(1)))
        return time.process_time() - began
    shape = (28, 28, 1)
    model = models.from_linen(ViT(), shape, 10) if name == "vit" else models.build(name, 10, shape)
    if task == "check_model":
        check_model(model)
        return time.process_time() - began
    federation = data.federate(images, labels, data.partition.dirichlet(rng, labels, 10, alpha=1.0), num_classes=10)
    local = LocalTraining(batch_size=50, optimizer=optax.sgd(0.05))
    cohort = Participation(clients_per_round=5)
    test = images[:600], labels[:600]
    simulate(recipes.fedavg(), model, federation, test, rounds=1, seed=0, local=local, participation=cohort)
    return time.process_time() - began


def main() -> None:
    """Prints the median of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--case", help="measure this case in this process")
    options = parser.parse_args()
    if options.case:
        print(measure(*options.case.split()))
        return
    seconds: dict[str, list[float]] = {case: [] for case in CASES}
    for _ in range(options.passes):
        for case in CASES:
            command = [sys.executable, __file__, "--case", case]
            seconds[case].append(float(subprocess.check_output(command, text=True)))
    for case, measured in seconds.items():
        print(f"{case}: {statistics.median(measured):.1f}")


if __name__ == "__main__":
    main()
