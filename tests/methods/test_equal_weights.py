"""Equal weights for all updates that count."""

from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from methods import float64

from fedjax_bal.recipes import combine, equal_weights, scaffold


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_updates_that_count_weigh_the_same(scale):
    cohort = SimpleNamespace(sizes=jnp.array([300.0, 0.0, 7.0]))
    (part,) = equal_weights().parts
    assert part.weigh(scale * cohort.sizes, cohort, None).tolist() == [scale, 0.0, scale]


def test_it_is_refused_where_weights_are_equal_already():
    with pytest.raises(ValueError, match="equal_weights: received ControlVariates, whose updates weigh the same"):
        float64.simulation(combine(scaffold(), equal_weights()))
