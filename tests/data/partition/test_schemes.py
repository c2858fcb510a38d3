"""What holds for every scheme, the names of schemes, and drawing one as a configuration describes it."""

import inspect
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_bal.annotations import parameters
from fedjax_bal.config import load_config, resolved_yaml
from fedjax_bal.config.errors import ConfigError
from fedjax_bal.data import partition


class Case(NamedTuple):
    scheme: str
    parameters: dict
    disjoint: bool = True
    complete: bool = True  # all rows are used
    nobody_empty: bool = True
    equal: bool = False  # sizes differ by at most 1


TABLE = np.random.default_rng(0).integers(0, 3, (10, 10))
CASES = {
    "iid": Case("iid", {}, equal=True),
    "quantity dirichlet": Case("quantity", {"alpha": 0.1}),
    "quantity dirichlet, empty clients": Case("quantity", {"alpha": 0.01, "least": 0}, nobody_empty=False),
    "quantity zipf": Case("quantity", {"sizes": "power", "exponent": -1}),
    "quantity exponential": Case("quantity", {"sizes": "exponential", "exponent": 30.0}),
    "quantity lognormal": Case("quantity", {"sizes": "lognormal", "sigma": 3.0}),
    "quantity empirical": Case("quantity", {"sizes": "empirical", "values": (3, 9, 80)}),
    "pathological": Case("pathological", {"classes_per_client": 2}, disjoint=False, complete=False, equal=True),
    "pathological, niid-bench": Case("pathological", {"classes_per_client": 2, "form": "niid_bench"}, complete=False),
    "shards": Case("shards", {"shards_per_client": 1}, equal=True),
    "shards, three of a client": Case("shards", {"shards_per_client": 3}),
    "dirichlet": Case("dirichlet", {"alpha": 0.1, "min_size": 1}),
    "dirichlet, plain": Case("dirichlet", {"alpha": 0.1, "min_size": 1, "form": "plain"}),
    "dirichlet, cbfl": Case("dirichlet", {"alpha": 0.1, "form": "cbfl"}, complete=False, nobody_empty=False),
    "client_dirichlet": Case("client_dirichlet", {"alpha": 0.1}, equal=True),
    "client_dirichlet, no mass": Case("client_dirichlet", {"alpha": 1e-37}, equal=True),
    "client_dirichlet, global prior": Case(
        "client_dirichlet", {"alpha": 0.1, "prior": "global", "sizes": "lognormal", "least": 1}
    ),
    "balanced_dirichlet": Case("balanced_dirichlet", {"alpha": 0.1}, equal=True),
    "balanced_dirichlet, no mass": Case("balanced_dirichlet", {"alpha": 1e-37}, equal=True),
    "refilled_dirichlet": Case("refilled_dirichlet", {"alpha": 0.1}, disjoint=False, complete=False, equal=True),
    "refilled_dirichlet, no mass": Case(
        "refilled_dirichlet", {"alpha": 1e-37}, disjoint=False, complete=False, equal=True
    ),
    "equal_cut_dirichlet": Case("equal_cut_dirichlet", {"alpha": 0.1}, equal=True),
    "equal_cut_dirichlet, no mass": Case("equal_cut_dirichlet", {"alpha": 1e-37}, equal=True),
    "extended_dirichlet": Case("extended_dirichlet", {"classes_per_client": 2, "alpha": 0.1}, complete=False),
    "extended_dirichlet, no mass": Case(
        "extended_dirichlet", {"classes_per_client": (1, 3), "alpha": 1e-37}, complete=False
    ),
    "long_tail": Case("long_tail", {"alpha": 0.9}, nobody_empty=False),
    "local_long_tail": Case("local_long_tail", {"local_factor": 20.0}, complete=False),
    "mixed_long_tail": Case("mixed_long_tail", {"local_factor": 20.0}, complete=False),
    "class_table": Case("class_table", {"table": TABLE}, complete=False, nobody_empty=False),
    "class_table, shares": Case(
        "class_table", {"table": TABLE[:, ::-1], "holds": "shares"}, complete=False, nobody_empty=False
    ),
    "flcir_realworld": Case("flcir_realworld", {"discard": False}),
    "flcir_realworld, discarding": Case("flcir_realworld", {"discarded": (0,)}, complete=False),
    "astraea": Case("astraea", {"variant": "INS", "least": 1}, complete=False),
    "normal_density": Case("normal_density", {}, complete=False, equal=True),
}


LABELS = st.lists(st.sampled_from([-3, 0, 2, 7, 8]), min_size=1, max_size=120).map(np.array)


def draw(case, labels, clients, seed):
    """The partition, or None where there is none and the reason says what to do."""
    try:
        return partition.SCHEMES[case.scheme](np.random.default_rng(seed), labels, clients, **case.parameters)
    except ValueError as error:
        words = ("use", "omit", "name some", "fewer", "at least", "expected")
        assert any(word in str(error) for word in words), error
        return None


def same(parts, others):
    return [rows.tolist() for rows in parts] == [rows.tolist() for rows in others]


def test_every_scheme_is_in_the_table():
    asking = {"natural", "file"}  # for owners, or a file
    assert {case.scheme for case in CASES.values()} == set(partition.SCHEMES) - asking


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=20)
@given(labels=LABELS, clients=st.integers(1, 12), seed=st.integers(0, 9))
def test_rows_are_given_as_promised(name, labels, clients, seed):
    case = CASES[name]
    parts = draw(case, labels, clients, seed)
    if parts is None:
        return
    rows, sizes = np.concatenate(parts), [len(part) for part in parts]
    assert len(parts) == clients and len(rows) > 0
    assert rows.min() >= 0 and rows.max() < len(labels) and rows.dtype.kind == "i"
    if case.disjoint:
        assert len(set(rows.tolist())) == len(rows)
    if case.complete:
        assert set(rows.tolist()) == set(range(len(labels)))
    if case.nobody_empty:
        assert min(sizes) >= 1
    if case.equal:
        assert max(sizes) - min(sizes) <= 1
    assert all(len(set(part.tolist())) == len(part) for part in parts)
    assert same(parts, draw(case, labels, clients, seed))


@pytest.mark.parametrize("name", CASES)
def test_usual_input_has_a_partition_that_depends_on_the_seed(name):
    case, labels = CASES[name], np.repeat(np.arange(10), 60)
    first, second = (draw(case, labels, 10, seed) for seed in (0, 1))
    assert first is not None and second is not None
    assert not same(first, second)


@pytest.mark.parametrize("name", CASES)
def test_a_global_long_tail_comes_before_any_of_them(name):
    case, labels = CASES[name], np.repeat(np.arange(10), 200)
    wanted = (case.scheme, 10, 3, case.parameters)
    plain, tailed = partition.draw(labels, *wanted), partition.draw(labels, *wanted, imbalance_factor=10)
    assert same(plain, draw(case, labels, 10, 3))
    # 200 * 10^(-c / 9), rounded down
    kept = np.array([200, 154, 119, 92, 71, 55, 43, 33, 25, 20])
    counts = np.bincount(labels[np.unique(np.concatenate(tailed))], minlength=10)
    assert (counts <= kept).all()
    if case.complete:
        assert counts.tolist() == kept.tolist()


def test_the_long_tail_keeps_the_same_rows_whatever_the_scheme():
    labels = np.repeat(np.arange(4), 100)
    drawn = [
        partition.draw(labels, scheme, 4, 5, parameters, 20, "step", "random")
        for scheme, parameters in (("iid", {}), ("shards", {}), ("balanced_dirichlet", {"alpha": 0.3}))
    ]
    assert len({tuple(sorted(np.concatenate(parts).tolist())) for parts in drawn}) == 1


def test_classes_that_a_group_lacks_are_no_matter_once_everybody_has_a_share():
    labels = np.array([-3] * 10 + [0])
    for seed in range(20):
        parts = partition.equal_cut_dirichlet(np.random.default_rng(seed), labels, 11, alpha=1e-37)
        assert sorted(np.concatenate(parts)) == list(range(11))


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
        (
            "partition.scheme=lad",
            "partition.scheme: received 'lad'",
        ),
        ("partition={scheme: lda, clients: 20, seed: 1}", "partition.alpha: missing"),
        ("partition={scheme: lda, alpha: 1, beta: 1, clients: 20, seed: 1}", "unknown key for dirichlet"),
        ("partition.imbalance_factor=0.01", "received 0.01"),
        ("partition.imbalance_profile=exp", "received 'exp'"),
    ],
)
def test_a_configuration_says_what_is_wrong_with_them(override, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, [override])


REQUIRED = {
    "alpha": 0.5,
    "classes_per_client": 1,
    "owners": np.arange(9),
    "file": "clients.txt",
    "local_factor": 9,
    "table": [[1]] * 9,
}
PARAMETERS = [
    (name, parameter)
    for name, scheme in partition.SCHEMES.items()
    for parameter in ("num_clients", *parameters(scheme, skip=("rng", "labels", "num_clients")))
]


def call(scheme, **changes):
    function = partition.SCHEMES[scheme]
    needed = inspect.signature(function).parameters
    arguments = {"rng": np.random.default_rng(0), "labels": np.arange(9), "num_clients": 9}
    arguments |= {name: value for name, value in REQUIRED.items() if name in needed}
    return function(**arguments | changes)


@pytest.mark.parametrize(("scheme", "parameter"), PARAMETERS)
def test_every_argument_is_checked_by_its_annotation(scheme, parameter):
    for wrong in (object(), float("nan"), [], -1 if parameter not in ("exponent", "published_seed") else "x"):
        with pytest.raises(ValueError, match=f"^{parameter}: received .*(must be|allowed)"):
            call(scheme, **{parameter: wrong})


@pytest.mark.parametrize("scheme", partition.SCHEMES)
def test_every_scheme_needs_clients_labels_and_a_generator(scheme):
    for clients in (0, 1.5, "3", True):
        with pytest.raises(ValueError, match=r"num_clients: received .*integer of at least"):
            call(scheme, num_clients=clients)
    for labels in ([], [[1]], [0.5], ["a"], [True, False], 3):
        with pytest.raises(ValueError, match="labels has shape"):
            call(scheme, labels=np.array(labels))
    with pytest.raises(ValueError, match="rng: received None"):
        call(scheme, rng=None)


def test_schemes_are_public_by_name():
    assert all(partition.SCHEMES[name] is getattr(partition, name) for name in partition.SCHEMES)
