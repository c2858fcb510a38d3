"""Some random runs; `campaign.py` checks hundreds."""

import jax
import pytest
import quick
from properties.campaign import BROKEN, HELD, check
from properties.checks import CHECKS, BrokenError


@pytest.mark.slow
@pytest.mark.parametrize("number", quick.only(range(2), 0, others=pytest.mark.nightly))
def test_a_random_run_comes_to_the_same_however_it_is_run(number):
    draw, found = check(0, number)
    assert {name: told for name, (outcome, _, told) in found.items() if outcome == BROKEN} == {}, str(draw)

    noticing = lambda *names: [CHECKS[name] for name in names if found[name][0] == HELD]
    for name in ("bytes_up", "clients"):  # and what isn't the same is noticed
        draw.results[-1].records[-1][name] += 1
        for one in noticing("cohort order", "sums"):
            with pytest.raises(BrokenError, match=name):
                one(draw)
        draw.results[-1].records[-1][name] -= 1
    moved = jax.tree.map(lambda leaf: leaf + 1e-3, draw.state.variables)
    draw.snapshots[-1] = draw.snapshots[-1]._replace(state=draw.state._replace(variables=moved))
    for one in noticing("cohort order", "padding"):
        with pytest.raises(BrokenError, match="states differ by 0.001"):
            one(draw)
