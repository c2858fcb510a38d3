"""Names of clients and their test rows change nothing that is trained, and no program sees the names."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import toys

from fedjax_bal import data, recipes
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.engine.host.stack import Member, StackedRuns, stacking_key
from fedjax_bal.options import Execution, LocalTraining
from fedjax_bal.types import Dataset

LOCAL = LocalTraining(batch_size=4)
ALONE = Execution(strategy="map", devices=1)


def dataset(names=("a", "b", "c", "d", "e", "f"), **changes):
    """The toy data, of which every sixth row belongs to the same user, in training and testing."""
    toy = toys.federation()
    owners = np.arange(len(toy.labels)) % 6
    classes = tuple(map(str, range(toys.CLASSES)))
    images = np.asarray(toy.images, np.float32)
    known = Dataset(images, toy.labels, images[:40], toy.labels[:40], classes, owners, (0.0,), (1.0,))
    return known._replace(client_names=names, test_clients=owners[:40], **changes)


def natural(known, seed=0, clients=None):
    rng = np.random.default_rng(seed)
    rows = data.partition.natural(rng, known.train_labels, clients, known.train_clients)
    return data.federate(known, rows)


def test_programs_do_not_see_names():
    known = dataset()
    model, test = toys.network(), toys.test_set()
    first, second = (
        build_simulation(recipes.fedavg(), model, natural(each), test, rounds=2, local=LOCAL, execution=ALONE)
        for each in (known, known._replace(client_names=tuple("uvwxyz")))
    )
    assert first.federation.client_names == tuple("abcdef") and first.federation_on_device.names is None
    shapes = [jax.tree.structure(simulation.on_device) for simulation in (first, second)]
    assert shapes[0] == shapes[1] and "a" not in str(shapes[0]).split("'")


@pytest.mark.slow
def test_runs_on_other_users_train_together():
    known = dataset()
    federations = [natural(known, seed, clients=4) for seed in (0, 1)]
    assert federations[0].client_names != federations[1].client_names
    # As the command line does it: all partitions share the arrays that are on the devices.
    stored = federations[0].images, federations[0].labels
    sims = [
        build_simulation(
            recipes.fedavg(), toys.network(), each._replace(images=stored[0], labels=stored[1]), toys.test_set(),
            rounds=1, local=LOCAL, execution=replace(ALONE, rounds_per_dispatch=1),
        )
        for each in federations
    ]  # fmt: skip
    sims[1].test = sims[0].test
    assert stacking_key(sims[0]) == stacking_key(sims[1])
    stack = StackedRuns([Member(sim, 0) for sim in sims], [sim.init(0) for sim in sims])
    for sim, result in zip(sims, stack.advance(), strict=True):
        alone = sim.advance(0, sim.init(0))
        assert result is not None
        np.testing.assert_array_equal(result.client_hits, alone.client_hits)
