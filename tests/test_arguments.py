"""Values of a wrong kind, given to what users call: each has a message that names the argument."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_bal import Participation, check_part, check_recipe, citation, data, recipes, simulate

LABELS = np.arange(12) % 3
ROWS = np.zeros((12, 2, 2, 1), np.uint8)


def trained(**changes):
    given = {"recipe": recipes.fedavg(), "model": toys.network(), "federation": toys.federation()}
    given |= {"test": toys.test_set(), "rounds": 1, "seed": 0}
    return simulate(**given | changes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trained(early_stopping=5), "early_stopping: received 5"),
        (lambda: trained(on_round=5), "on_round: received 5"),
        (lambda: trained(progress="yes"), "progress: received 'yes'"),
        (lambda: trained(seed=jax.random.key(0)), "(?s)seed: received .*, must be an integer of at least 0"),
        (lambda: trained(participation=Participation(availability=0.5)), r"availability: received 0.5, .* bernoulli"),
        (lambda: trained(participation=Participation(delivery=True)), "delivery: received True"),
        (lambda: trained(participation=Participation(speed=3)), r"speed: received 3, .* as speed\("),
        (lambda: check_recipe("fedavg"), "recipe: received 'fedavg'"),
        (lambda: check_part(5), "part: received 5"),
        (lambda: citation("fedavg"), "recipe: received 'fedavg'"),
        (lambda: data.carve(0, LABELS, 1), "rng: received 0"),
        (lambda: data.federate(ROWS, np.ma.masked_equal(LABELS, 0), [[0]], 3), "labels: received masked values"),
        (lambda: data.federate(np.ma.masked_equal(ROWS, 0), LABELS, [[0]], 3), "images: received masked values"),
        (lambda: data.federate(ROWS, LABELS, [[0]], 3, auxiliary=[1]), r"auxiliary is \[1\]"),
    ],
)
def test_values_of_a_wrong_kind(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_a_seed_may_be_an_array_without_axes():
    ends = [trained(seed=seed).variables for seed in (3, np.int64(3), jnp.int32(3))]
    for end in ends[1:]:
        jax.tree.map(np.testing.assert_array_equal, end, ends[0])
