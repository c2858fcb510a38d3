"""The engine against FedAvg in plain loops, in which nothing is compiled together, padded or run at the same time."""

import jax
import numpy as np
import optax
import pytest

from fedjax_bal import models, recipes
from fedjax_bal.data import federate
from fedjax_bal.engine.host import make_round
from fedjax_bal.engine.reference import fedavg_round
from fedjax_bal.optim import optimizer
from fedjax_bal.options import Execution, LocalTraining
from fedjax_bal.testing import toy
from fedjax_bal.testing.workbench import SEEDS, Bench, key_of
from fedjax_bal.types import Variables


def assert_close(got, want, tolerance):
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_the_batterys_runs_of_fedavg_are_the_reference_s():
    """Batch statistics, single rows, short batches, and clients that are away or don't deliver."""
    bench = Bench(recipes.fedavg())
    local = toy.local_training(bench.model)
    seed = SEEDS[1]
    states, rounds = bench.states[seed], 0
    for number, plan in enumerate(bench.plans(seed)):
        clients = plan.clients[plan.delivered & (bench.steps(plan) > 0)]
        if len(clients):
            want = fedavg_round(
                bench.model, optax.sgd(0.1), bench.simulation.federation, Variables(*states[number].variables), clients,
                key=key_of(seed), number=number, epochs=1, batch_size=local.batch_size,
            )  # fmt: skip
            assert_close(states[number + 1].variables, want, 1e-5)
            rounds += 1
    assert rounds > 1


@pytest.mark.slow
def test_a_convolutional_network_with_momentum_and_epochs_is_the_reference_s():
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (30, 4, 4, 1), dtype=np.uint8), rng.integers(0, 3, 30)
    federation = federate(images, labels, [range(8), range(8, 20), range(20, 30)], 3)
    model = models.build("tiny_bn", 3, (4, 4, 1))
    local = LocalTraining(epochs=2, batch_size=4, optimizer=optimizer("sgd", 0.05, momentum=0.9), lone_rows="keep")
    round_fn = make_round(recipes.fedavg(), model, federation, local=local, execution=Execution(strategy="vmap"))
    key, clients = jax.random.key(5), np.array([2, 0])
    begin = round_fn.init(key)
    end, _ = jax.jit(round_fn.step)(round_fn.hyperparameters, key, begin, (clients[:, None], np.ones((2, 1), bool)))
    sgd, sizes = optax.sgd(0.05, momentum=0.9), {"epochs": 2, "batch_size": 4}
    want = fedavg_round(model, sgd, federation, begin.variables, clients.tolist(), key=key, number=0, **sizes)
    assert_close(end.variables, want, 1e-4)
