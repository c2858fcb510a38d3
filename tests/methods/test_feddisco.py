"""FedDisco: against its transcription."""

import jax.numpy as jnp
import numpy as np
import pytest
from methods import float64
from rounding import DOUBLE

from fedjax_bal.parts import DiscrepancyWeights
from fedjax_bal.recipes import combine, fedau, fedbuff, feddisco, fednova
from fedjax_bal.types import Cohort

pytestmark = pytest.mark.usefixtures("double")


def test_weights_by_discrepancy_equal_their_transcription():
    counts = np.array([[10, 10, 10, 10], [60, 0, 0, 0], [5, 5, 0, 0], [0, 0, 0, 0]], float)  # the last didn't deliver
    sizes = counts.sum(1)
    shares = sizes / sizes.sum()
    distances = np.array([sum(p * np.log(4 * p) for p in row / max(row.sum(), 1) if p > 0) for row in counts])
    wanted = np.maximum(shares - 0.5 * distances / distances.sum() + 0.1, 0) * (sizes > 0)
    assert 0 < wanted[2] < shares[2] + 0.1

    def weigh(a, b, rows=counts, weights=sizes):
        cohort = Cohort(**(dict.fromkeys(Cohort._fields) | {"class_counts": jnp.asarray(rows)}))
        return np.asarray(DiscrepancyWeights(a, b).weigh(jnp.asarray(weights), cohort, None))

    np.testing.assert_allclose(weigh(0.5, 0.1), wanted, rtol=DOUBLE)
    np.testing.assert_allclose(weigh(0.5, 0.1, weights=shares), wanted, rtol=DOUBLE)
    np.testing.assert_allclose(weigh(0.0, 0.0), shares, rtol=DOUBLE)
    np.testing.assert_allclose(weigh(900.0, 0.0), [shares[0], 0, 0, 0], rtol=DOUBLE)
    np.testing.assert_allclose(weigh(900.0, 0.0, counts[[2, 1, 2, 3]]), shares, rtol=DOUBLE)  # no client would count


@pytest.mark.parametrize("other", [fednova(), fedbuff(), fedau()], ids=lambda recipe: recipe.name)
def test_it_comes_before_methods_that_find_their_own_weights_in_those_of_the_end(other):
    float64.simulation(combine(feddisco(), other))
    with pytest.raises(ValueError, match=f"feddisco: received {other.parts[0].slot} before it, .*: name feddisco"):
        float64.simulation(combine(other, feddisco()))
