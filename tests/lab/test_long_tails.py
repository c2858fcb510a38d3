"""A global long tail in a configuration: clients share out what it leaves, and all else stays."""

import numpy as np
import pytest
import small_run

from fedjax_bal.lab.setup import SetupError, set_up

TAIL = [500, 387, 299, 232, 179, 139, 107, 83, 64, 50]  # floor(500 * 10^(-c / 9))


def federation_of(tmp_path, *overrides):
    return set_up(small_run.config(tmp_path, *overrides)).simulations[0].federation


@pytest.mark.parametrize("scheme", ["{scheme: noniid-labeldir, alpha: 0.3}", "{scheme: power_law}", "{scheme: shards}"])
def test_any_scheme_shares_out_what_the_long_tail_leaves(tmp_path, scheme):
    wanted = f"partition={scheme[:-1]}, clients: 10, seed: 3, imbalance_factor: 10}}"
    federation = federation_of(tmp_path, wanted, "auxiliary.per_class=500")
    assert federation.class_counts.sum(axis=0).tolist() == TAIL
    assert len(np.unique(federation.rows)) == sum(TAIL)
    assert not np.isin(federation.auxiliary["balanced"], federation.rows).any()


def test_a_method_may_have_another_one(tmp_path):
    scheme = "partition={scheme: iid, clients: 10, seed: 3}"
    comparison = set_up(small_run.config(tmp_path, scheme, "methods.1.partition={imbalance_factor: 10}"))
    plain, tailed = (simulation.federation for simulation in comparison.simulations)
    assert (len(plain.rows), plain.class_counts.sum(axis=0).tolist()) == (10_000, [1000] * 10)
    assert tailed.class_counts.sum(axis=0).tolist() == [1000, 774, 599, 464, 359, 278, 215, 166, 129, 100]
    assert comparison.fingerprints[0].tolist() != comparison.fingerprints[1].tolist()


def test_too_long_a_tail_for_the_clients_is_refused(tmp_path):
    with pytest.raises(SetupError, match="partition: 2000 clients .* rows"):
        federation_of(tmp_path, "partition={scheme: iid, clients: 2000, seed: 0, imbalance_factor: 1000}")
