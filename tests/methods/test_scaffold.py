"""SCAFFOLD: identities of its control variates, and what it refuses."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from methods import float64
from rounding import FORMULA

from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.parts import ControlVariates
from fedjax_bal.recipes import astraea, combine, scaffold
from fedjax_bal.selection import bernoulli
from fedjax_bal.types import Outcome, Variables

OPTIONS = reference.Options(rate=0.1, decay=0.9, momentum=0.5, weight_decay=0.01)


pytestmark = pytest.mark.usefixtures("double")


SOME = Participation(clients_per_round=5, availability=bernoulli(0.7), delivery=bernoulli(0.8))
simulation = partial(float64.simulation, options=OPTIONS, participation=SOME)


@pytest.mark.slow
def test_the_servers_control_variate_is_the_clients_mean_after_several_passes():
    recipe = combine(scaffold(), astraea(alpha=None, size=2, mediator_epochs=2))
    state = float64.run(float64.simulation(recipe, participation=SOME))
    mean = jax.tree.map(lambda leaf: leaf.mean(0), state.memory["ControlVariates"])
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(mean)) > 1e-2
    float64.assert_equal(state.server["ControlVariates"], mean)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.999])
def test_equivalent_steps_lose_no_digits_in_float32(momentum):
    own, counter, total = ControlVariates(with_momentum=True), 0.0, 0.0
    for _ in range(5):
        counter = momentum * counter + 1
        total += counter
    with jax.enable_x64(False):
        zeros, ones = Variables({"w": jnp.zeros(())}, {}), Variables({"w": jnp.ones(())}, {})
        context = lambda momentum: SimpleNamespace(broadcast={own.slot: zeros.params}, momentum=momentum)
        outcome = Outcome(ones, zeros, jnp.array(5), jnp.array(5.0), None)
        found = jax.jit(lambda momentum: own.remember(zeros.params, outcome._replace(ctx=context(momentum)))["w"])
        assert found(momentum) == pytest.approx(1 / total, rel=FORMULA)


def test_what_does_not_fit_is_refused():
    nesterov = optimizer("sgd", 0.1, momentum=0.5, nesterov=True)
    for bad, message in ((optimizer("adam", 0.1), "plain SGD"), (nesterov, "nesterov")):
        with pytest.raises(ValueError, match=message):
            simulation(scaffold(scaffold_momentum=True), local=LocalTraining(optimizer=bad))
    with pytest.raises(ValueError, match=r"momentum of 0.5.*momentum to 0, or scaffold_momentum to true"):
        simulation(scaffold())
