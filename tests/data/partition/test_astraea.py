import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_bal.config import ConfigError, load_config, resolved_yaml
from fedjax_bal.data.partition import astraea, letter_shares
from fedjax_bal.data.partition.dealing import class_quotas, client_counts, deal_quotas
from fedjax_bal.data.readers.idx import MERGED_CHARACTERS

POOL = np.repeat(np.arange(47), 15_000)  # about as many rows as EMNIST ByMerge, but as many of each class


def rng(seed=0):
    return np.random.default_rng(seed)


def counts_of(labels, parts):
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def divergence(counts):
    """KL to the uniform law, row by row, in nats."""
    shares = counts / counts.sum(axis=-1, keepdims=True)
    return (shares * np.log(np.where(shares > 0, shares, 1) * counts.shape[-1])).sum(axis=-1)


# The letters


@pytest.mark.parametrize(
    ("digits", "all_classes", "letters_alone"),
    [("uniform", 0.265, 0.336), ("none", 0.575, 0.336), ("rare", 0.512, 0.336)],
)
def test_divergence_of_the_letters(digits, all_classes, letters_alone):
    shares = letter_shares(47, digits)
    assert shares.sum() == pytest.approx(1)
    assert divergence(shares) == pytest.approx(all_classes, abs=5e-4)
    assert divergence(shares[10:]) == pytest.approx(letters_alone, abs=5e-4)
    assert shares[:10].sum() == pytest.approx({"uniform": 10 / 47, "none": 0, "rare": 0.015}[digits])
    assert np.ptp(shares[:10]) == 0


def test_the_six_rarest_classes():
    assert len(MERGED_CHARACTERS) == len(set(MERGED_CHARACTERS)) == 47
    order = np.argsort(letter_shares(47))
    assert {MERGED_CHARACTERS[label] for label in order[:6]} == set("ZQqJXK")
    assert {MERGED_CHARACTERS[label] for label in order[-2:]} == set("Ee")


def test_case():
    together, apart = letter_shares(47), letter_shares(47, case="split")
    share = lambda shares, name: shares[MERGED_CHARACTERS.index(name)]
    assert share(together, "E") == share(together, "e")
    assert share(together, "E") / share(together, "O") == pytest.approx(12.70 / 7.51)
    assert share(apart, "E") == share(apart, "e")
    assert share(apart, "E") / share(apart, "O") == pytest.approx(12.70 / 2 / 7.51)
    assert apart.sum() == pytest.approx(1)


def test_other_numbers_of_classes_go_by_rank():
    letters = letter_shares(26)
    assert (letters[0] / letters[-1], letters[0] / letters[1]) == pytest.approx((12.70 / 0.074, 12.70 / 9.06))
    for classes in (1, 2, 10, 100):
        shares = letter_shares(classes)
        assert shares.sum() == pytest.approx(1)
        assert (np.diff(shares) <= 0).all()
    ten = letter_shares(10)
    assert (ten[0] / ten[-1], ten[0] / ten[1]) == pytest.approx((12.70 / 0.074, 12.70 / 7.51))


# The set as a whole


@pytest.mark.parametrize(("variant", "total"), [("BAL1", 117_500), ("BAL2", 117_500), ("INS", 117_500)])
def test_balanced_variants(variant, total):
    counts = counts_of(POOL, astraea(rng(), POOL, 500, variant))
    assert counts.sum(axis=0).tolist() == [total // 47] * 47
    held = counts.sum(axis=1)
    if variant == "INS":
        assert held.min() == 10
        assert held.std() / held.mean() > 1
    else:
        assert set(held.tolist()) == {235}
    assert (counts == 5).all() == (variant == "BAL1")


@pytest.mark.parametrize(("variant", "total"), [("LTRF1", 117_500), ("LTRF2", 230_752)])
def test_letter_variants(variant, total):
    counts = counts_of(POOL, astraea(rng(), POOL, 500, variant))
    quotas = counts.sum(axis=0)
    assert quotas.sum() == total
    assert np.abs(quotas - total * letter_shares(47)).max() < 1
    assert divergence(quotas) == pytest.approx(0.265, abs=5e-4)
    assert counts.sum(axis=1).min() == 10


@pytest.mark.parametrize(("skew", "plain", "by_size"), [("uniform", 0.63, 0.50), ("exponential", 0.83, 0.71)])
def test_divergence_of_the_clients_of_ltrf2(skew, plain, by_size):
    """The paper reports a mean of 0.550, without saying how clients or sizes were drawn."""
    parts = [astraea(rng(seed), POOL, 500, "LTRF2", local_skew=skew) for seed in range(3)]
    tables = [counts_of(POOL, part) for part in parts]
    means = [divergence(counts).mean() for counts in tables]
    weighted = [np.average(divergence(counts), weights=counts.sum(axis=1)) for counts in tables]
    assert np.mean(means) == pytest.approx(plain, abs=0.02)
    assert np.mean(weighted) == pytest.approx(by_size, abs=0.02)


def test_of_a_small_pool_the_largest_set_with_these_shares():
    balanced = np.repeat(np.arange(47), 2400)
    assert len(np.concatenate(astraea(rng(), balanced, 500, "BAL1"))) == 112_800
    counts = counts_of(balanced, astraea(rng(), balanced, 100, "LTRF2"))
    quotas, shares = counts.sum(axis=0), letter_shares(47)
    assert quotas.max() == 2400
    assert np.abs(quotas - 2400 * shares / shares.max()).max() < 1
    ten = np.repeat(np.arange(10), 6000)
    quotas = counts_of(ten, astraea(rng(), ten, 50)).sum(axis=0)
    assert (quotas[0], quotas[-1]) == (6000, round(6000 * 0.074 / 12.7))


def test_of_a_pool_that_lacks_little_a_class_that_runs_out_gives_all_it_has():
    wanted = np.rint(230_752 * letter_shares(47)).astype(int)
    scarce = np.argsort(-wanted)[1]
    pool = np.repeat(np.arange(47), np.where(np.arange(47) == scarce, wanted[scarce] // 2, 16_000))
    quotas = counts_of(pool, astraea(rng(), pool, 500, "LTRF2")).sum(axis=0)
    assert quotas[scarce] == wanted[scarce] // 2
    assert np.abs(np.delete(quotas - wanted, scarce)).max() <= 1


def test_a_balanced_pool_is_used_up():
    for classes in (75, 77, 91):  # where 100 / (1 / C) comes out below 100 C
        labels = np.repeat(np.arange(classes), 100)
        parts = astraea(rng(), labels, 9, "BAL1")
        assert sorted(np.concatenate(parts).tolist()) == list(range(100 * classes))


def test_which_rows_is_random():
    drawn = [np.concatenate(astraea(rng(seed), POOL, 500, "BAL1")) for seed in (1, 2)]
    assert len(np.intersect1d(*drawn)) == pytest.approx(117_500 / 6, rel=0.03)  # each has 2,500 of 15,000


def test_a_total_asked_for_is_met_and_others_make_up_for_classes_that_run_out():
    pool = np.repeat(np.arange(47), np.where(letter_shares(47) > 0.05, 5000, 15_000))
    quotas = counts_of(pool, astraea(rng(), pool, 500, "LTRF2", total=230_752)).sum(axis=0)
    assert quotas.sum() == 230_752
    short = letter_shares(47) * 230_752 > 5000
    short &= letter_shares(47) > 0.05
    assert (quotas[short] == 5000).all()
    scale = quotas[~short] / letter_shares(47)[~short]
    assert scale.min() > 230_752
    assert np.ptp(scale) / scale.mean() < 0.01  # the rarest class has some hundred rows


def test_single_cells_of_the_table_can_be_changed():
    parts = astraea(rng(), POOL, 100, "LTRF1", total=47_000, sizes="equal", classes="balanced", local="even")
    assert (counts_of(POOL, parts) == 10).all()
    counts = counts_of(POOL, astraea(rng(), POOL, 100, "LTRF1", total=40_000, digits="none"))
    assert (counts[:, :10] == 0).all()
    sizes = [len(part) for part in astraea(rng(), POOL, 100, "BAL1", sizes="lognormal", sigma=0.1, least=1)]
    assert 1.2 < max(sizes) / min(sizes) < 3


def test_observed_sizes():
    draw = lambda **options: astraea(rng(), POOL, 200, "LTRF1", total=20_000, sizes="empirical", **options)
    sizes = np.array([len(rows) for rows in draw(values=[100, 300], least=1)])
    assert sizes.sum() == 20_000
    small, large = np.sort(sizes)[[0, -1]]
    assert large / small == pytest.approx(3, rel=0.05) and np.isin(sizes, [small, small + 1, large - 1, large]).all()
    sizes = np.array([len(rows) for rows in draw(quantiles={0.25: 10, 0.75: 1000})])
    assert sizes.min() == 10 and 0.15 < (sizes >= sizes.max() - 1).mean() < 0.35
    assert [len(rows) for rows in draw(quantiles=((0.25, 10.0), (0.75, 1000.0)))] == sizes.tolist()


def from_config(tmp_path, *overrides):
    file = tmp_path / "own.yaml"
    file.write_text(
        "dataset: {name: labels_47}\npartition: {scheme: astraea, clients: 20, seed: 0}\nmodel: {name: mlp}\n"
        "training: {rounds: 1, local_epochs: 1, batch_size: 5, optimizer: {name: sgd, learning_rate: 0.1}}\n"
        "selection: {clients_per_round: 5}\nmethods: [{recipe: fedavg}]\nseeds: [0]\nname: own\n"
    )
    return load_config(file, overrides)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("values", "[5, 20, 100]", [5, 20, 100]),
        ("quantiles", "{'0.1': 3, '0.5': 31.5, '1': 1058}", {0.1: 3, 0.5: 31.5, 1: 1058}),
        ("quantiles", "[[0.1, 3], [0.5, 31.5], [1, 1058]]", {0.1: 3, 0.5: 31.5, 1: 1058}),
    ],
)
def test_observed_sizes_from_a_configuration(tmp_path, key, text, value):
    config = from_config(tmp_path, "partition.sizes=empirical", f"partition.{key}={text}")
    (tmp_path / "again.yaml").write_text(resolved_yaml(config))
    again = load_config(tmp_path / "again.yaml")
    assert again == config
    parts = astraea(rng(), POOL, 20, **again.partition.parameters)
    wanted = astraea(rng(), POOL, 20, sizes="empirical", **{key: value})
    assert [rows.tolist() for rows in parts] == [rows.tolist() for rows in wanted]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("partition.values=3", "partition.values: received 3, must be a list, not empty, each item a finite"),
        ("partition.quantiles=[3]", r"partition.quantiles: received \[3\], must be a mapping, or a list of pairs, not"),
        ("partition.quantiles={a: 3}", "partition.quantiles: received a mapping, must be a mapping, or a list of"),
        ("partition.quantiles={}", "partition.quantiles: received an empty mapping, must be a mapping"),
        ("partition.total=99999999999", "received 99999999999, must be an integer from -2147483647 to 2147483647, or"),
    ],
)
def test_a_configuration_that_is_refused(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        from_config(tmp_path, override)


def test_labels_need_not_count_from_zero():
    labels = np.repeat([-5, 3, 900], 100)
    parts = astraea(rng(), labels, 4)
    held = {label: int((labels[np.concatenate(parts)] == label).sum()) for label in (-5, 3, 900)}
    assert held == {-5: 100, 3: 22, 900: 0}


# Dealing


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    cuts=st.lists(st.floats(0, 1), max_size=5),
    seed=st.integers(0, 999),
)
def test_counts_have_exactly_the_margins(sizes, cuts, seed):
    total = sum(sizes)
    quotas = np.diff(sorted([0, *(round(share * total) for share in cuts), total]))
    laws = (1 - rng(seed).random((len(sizes), len(quotas)))) ** 3
    counts = client_counts(rng(seed), laws, np.array(sizes), quotas)
    assert (counts >= 0).all()
    assert counts.sum(axis=1).tolist() == sizes
    assert counts.sum(axis=0).tolist() == quotas.tolist()


def test_counts_follow_the_laws_whatever_the_order_of_clients():
    clients = 400
    laws = np.tile([[9.0, 1.0, 1.0], [1.0, 1.0, 9.0]], (clients // 2, 1))
    sizes, quotas = np.full(clients, 110), np.array([20_000, 4000, 20_000])
    means = np.zeros((clients, 3))
    for seed in range(20):
        means += client_counts(rng(seed), laws, sizes, quotas) / 20
    # By symmetry the fitted table has rows (a, 10, b) and (b, 10, a) with a + b = 100 and a / b = 9.
    assert np.abs(means[0::2].mean(axis=0) - [90, 10, 10]).max() < 0.5
    assert np.abs(means[1::2].mean(axis=0) - [10, 10, 90]).max() < 0.5
    halves = means[: clients // 2].mean(axis=0) - means[clients // 2 :].mean(axis=0)
    assert np.abs(halves).max() < 0.5  # nobody is served last


@settings(max_examples=100, deadline=None)
@given(
    held=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    clients=st.integers(1, 12),
    total=st.one_of(st.none(), st.integers(1, 200)),
    classes=st.sampled_from(["balanced", "letters"]),
    sizes=st.sampled_from(["equal", "lognormal"]),
    local=st.sampled_from(["even", "iid", "random"]),
    seed=st.integers(0, 99),
)
def test_disjoint_rows_exact_quotas_and_sizes(held, clients, total, classes, sizes, local, seed):
    labels = rng(seed).permutation(np.repeat(np.arange(len(held)), held))
    options = {"total": total, "classes": classes, "sizes": sizes, "local": local, "least": 1}
    shares = letter_shares(len(held)) if classes == "letters" else np.full(len(held), 1 / len(held))
    allowed = int(min(np.array(held) / shares) + 1e-9)
    rows = min(allowed, 117_500) if total is None else total
    if rows > len(labels) or rows < clients:
        with pytest.raises(ValueError, match="rows"):
            astraea(rng(seed), labels, clients, **options)
        return
    parts = astraea(rng(seed), labels, clients, **options)
    together = np.concatenate(parts)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert len(together) == len(set(together.tolist())) == rows
    quotas = np.bincount(labels[together], minlength=len(held))
    assert quotas.tolist() == class_quotas(shares, np.array(held), rows).tolist()
    if total is None:
        assert np.abs(quotas - rows * shares).max() < 1
    if sizes == "equal":
        assert np.ptp([len(part) for part in parts]) <= 1


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=20),
    cuts=st.lists(st.floats(0, 1), max_size=4),
    seed=st.integers(0, 99),
)
def test_even_clients_have_the_classes_of_the_whole(sizes, cuts, seed):
    total = sum(sizes)
    quotas = np.diff(sorted([0, *(round(share * total) for share in cuts), total]))
    quotas = quotas[quotas > 0]
    labels = np.repeat(np.arange(len(quotas)), quotas)
    by_class = [np.flatnonzero(labels == label) for label in range(len(quotas))]
    counts = counts_of(labels, deal_quotas(rng(seed), by_class, quotas, np.array(sizes), "even", "uniform"))
    assert counts.sum(axis=1).tolist() == sizes
    assert np.abs(counts - np.outer(sizes, quotas) / total).max() < 2


def test_iid_clients_are_hypergeometric():
    labels = np.repeat([0, 1], 500)
    counts = np.concatenate(
        [counts_of(labels, astraea(rng(seed), labels, 100, "BAL1", local="iid"))[:, 0] for seed in range(30)]
    )
    assert counts.mean() == 5
    assert counts.var() == pytest.approx(10 / 4 * 990 / 999, rel=0.08)


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        (500, {"variant": "LTRF3"}, "variant='LTRF3'; expected one of BAL1, BAL2, INS, LTRF1, LTRF2"),
        (500, {"sizes": "odd"}, "sizes: received 'odd'"),
        (500, {"sizes": "empirical"}, "values and quantiles: give one of them, and only one"),
        (500, {"values": [3]}, "values are given, but sizes='lognormal'; set sizes to 'empirical', or leave"),
        (500, {"classes": "odd"}, "classes: received 'odd'"),
        (500, {"local": "odd"}, "local: received 'odd'"),
        (500, {"local_skew": "odd"}, "local_skew: received 'odd'"),
        (500, {"digits": "odd"}, "digits: received 'odd'"),
        (500, {"case": "odd"}, "case: received 'odd'"),
        (500, {"total": 0}, "total: received 0, must be an integer of at least 1"),
        (500, {"total": 10**6}, "total=1000000 rows, but the classes that take part hold 705000"),
        (500, {"total": 600_000, "digits": "none"}, "total=600000 rows, but the classes that take part hold 555000"),
        (500, {"total": 4999}, "500 clients of 10 rows or more .least. need 5000 rows, but there are 4999"),
        (500, {"total": 499, "sizes": "equal"}, "500 clients for 499 rows"),
        (500, {"least": 0}, "least: received 0, must be an integer of at least 1"),
        (500, {"sigma": -1.0}, "sigma: received -1.0"),
    ],
)
def test_refusals(clients, options, message):
    with pytest.raises(ValueError, match=message):
        astraea(rng(), POOL, clients, **options)


def test_options_of_the_47_classes_are_refused_for_others():
    with pytest.raises(ValueError, match="digits='none' and case='insensitive' for 10 classes"):
        astraea(rng(), np.repeat(np.arange(10), 100), 5, digits="none")
