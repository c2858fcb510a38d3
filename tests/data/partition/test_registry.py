import inspect

import numpy as np
import pytest

from fedjax_bal.config import load_config, resolved_yaml
from fedjax_bal.config.problems import ConfigError
from fedjax_bal.data import partition


def test_other_names_stand_for_schemes_and_parameters_that_exist():
    for name, alias in partition.ALIASES.items():
        assert name not in partition.SCHEMES
        assert name in partition.aliases_of(alias.scheme)
        assert alias.parameters.keys() <= set(inspect.signature(partition.SCHEMES[alias.scheme]).parameters)


@pytest.mark.parametrize(
    ("name", "scheme", "parameters"),
    [
        ("homo", "iid", {}),
        ("noniid-labeldir", "dirichlet", {}),
        ("LDA", "dirichlet", {}),
        ("noniid-#label3", "pathological", {"form": "niid_bench", "classes_per_client": 3}),
        ("#C=2", "pathological", {"form": "niid_bench", "classes_per_client": 2}),
        ("iid-diff-quantity", "quantity", {"sizes": "dirichlet"}),
        ("Long-Tail", "long_tail", {}),
        ("shards", "shards", {}),
        ("no such", "no such", {}),
    ],
)
def test_names_as_papers_write_them(name, scheme, parameters):
    assert partition.resolve(name) == (scheme, parameters)


def test_flower_names_draw_what_they_say():
    def sizes(name):
        alias = partition.resolve(name)
        drawn = partition.SCHEMES[alias.scheme](np.random.default_rng(0), np.zeros(1000, int), 4, **alias.parameters)
        return [len(rows) for rows in drawn]

    assert sizes("linear") == [100, 200, 300, 400]
    assert sizes("square")[2] == 300  # 1000 * 9 / 30
    assert sizes("power_law") == [480, 240, 160, 120]


def test_a_configuration_takes_them_and_keeps_the_schemes_own_name():
    def partition_of(*overrides):
        return load_config(None, overrides).partition

    assert partition_of("partition.scheme=noniid-labeldir", "partition.alpha=0.3") == partition_of(
        "partition.alpha=0.3", "partition.scheme=dirichlet"
    )
    skewed = load_config(None, ["partition={scheme: noniid-#label2, clients: 20, seed: 1, imbalance_factor: 50}"])
    assert skewed.partition.parameters["form"] == "niid_bench"
    assert skewed.partition.drawing["imbalance_factor"] == 50
    assert "scheme: pathological" in resolved_yaml(skewed)
    own = partition_of("partition={scheme: power_law, clients: 20, seed: 1, exponent: -2}")
    assert own.parameters["exponent"] == -2 and own.parameters["sizes"] == "power"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("partition.scheme=lad", "partition.scheme: received 'lad'; allowed: astraea"),
        ("partition={scheme: lda, clients: 20, seed: 1}", "partition.alpha: missing"),
        ("partition={scheme: lda, alpha: 1, beta: 1, clients: 20, seed: 1}", "unknown key for dirichlet"),
        ("partition.imbalance_factor=0.01", "received 0.01, must be a finite number of at least 1"),
        ("partition.imbalance_profile=exp", "received 'exp'; allowed: exponential, step"),
    ],
)
def test_a_configuration_says_what_is_wrong_with_them(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override])
