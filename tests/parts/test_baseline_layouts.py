"""The baselines give the same result however their clients are laid out on the machine."""

import pytest
import toys
from parts import float64

from fedjax_bal.options import Execution
from fedjax_bal.recipes import combine, feddyn, fedlc, fednova, fedrs, fedyogi, iwds, trimmed_mean

RECIPES = {
    "fednova": combine(fednova(mu=0.1, server_momentum=0.2), iwds(), fedlc()),
    "feddyn": combine(feddyn(), fedrs()),
    "robust": combine(trimmed_mean(0.2), fedyogi()),
}
LANES_ON_TWO = Execution(strategy="vmap", chunk=3, devices=2)


pytestmark = pytest.mark.usefixtures("double")


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_lanes_on_two_devices_agree_with_one_by_one(name):
    got = float64.run(float64.simulation(RECIPES[name], execution=LANES_ON_TWO))
    one_by_one = float64.run(float64.simulation(RECIPES[name]))
    assert toys.largest_difference(got, one_by_one) < 1e-11
