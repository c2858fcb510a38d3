"""Astraea's five sets, its normal density, and FL-CIR's real world."""

import random

import numpy as np
import pytest
from data.partition.drawn import counts_of, rng
from hypothesis import given
from hypothesis import strategies as st
from rounding import DOUBLE
from scipy.stats import norm

from fedjax_bal.config import ConfigError, load_config, resolved_yaml
from fedjax_bal.data.partition import astraea, flcir_realworld, letter_shares, normal_density, normal_shares
from fedjax_bal.data.partition.dealing import class_quotas, client_counts, deal_quotas
from fedjax_bal.data.sources.idx import MERGED_CHARACTERS

POOL = np.repeat(np.arange(47), 15_000)  # about as many rows as EMNIST ByMerge, but as many of each class


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


@pytest.mark.parametrize("variant", ["BAL1", "BAL2", "INS"])
def test_balanced_variants(variant):
    counts = counts_of(POOL, astraea(rng(), POOL, 500, variant))
    assert counts.sum(axis=0).tolist() == [2500] * 47
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
        ("partition.values=3", "partition.values: received 3"),
        ("partition.quantiles=[3]", r"partition.quantiles: received \[3\]"),
        ("partition.quantiles={a: 3}", "partition.quantiles: received a mapping"),
        ("partition.quantiles={}", "partition.quantiles: received an empty mapping"),
        ("partition.total=99999999999", "received 99999999999"),
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
    drawn = [astraea(rng(seed), labels, 100, "BAL1", local="iid") for seed in range(30)]
    counts = np.concatenate([counts_of(labels, parts)[:, 0] for parts in drawn])
    assert counts.mean() == 5
    assert counts.var() == pytest.approx(10 / 4 * 990 / 999, rel=0.08)


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        (500, {"sizes": "empirical"}, "values and quantiles: give one of them, and only one"),
        (500, {"values": [3]}, "values are given, but sizes='lognormal'; set sizes to 'empirical', or leave"),
        (500, {"total": 10**6}, "total=1000000 rows, but the classes that take part hold 705000"),
        (500, {"total": 600_000, "digits": "none"}, "total=600000 rows, but the classes that take part hold 555000"),
        (500, {"total": 4999}, "500 clients of 10 rows or more .least. need 5000 rows, but there are 4999"),
        (500, {"total": 499, "sizes": "equal"}, "500 clients for 499 rows"),
    ],
)
def test_refusals(clients, options, message):
    with pytest.raises(ValueError, match=message):
        astraea(rng(), POOL, clients, **options)


def test_options_of_the_47_classes_are_refused_for_others():
    with pytest.raises(ValueError, match="digits='none' and case='insensitive' for 10 classes"):
        astraea(rng(), np.repeat(np.arange(10), 100), 5, digits="none")


def test_shares_of_ten_classes():
    density = norm.pdf([-2.7, -2.1, -1.5, -0.9, -0.3, 0.3, 0.9, 1.5, 2.1, 2.7])
    np.testing.assert_allclose(normal_shares(10), density / density.sum(), rtol=DOUBLE)
    assert normal_shares(10).max() / normal_shares(10).min() == pytest.approx(np.exp(3.6))
    assert normal_shares(1).tolist() == [1.0]
    np.testing.assert_allclose(normal_shares(2), [0.5, 0.5])
    assert normal_shares(4, span=2.0)[1] / normal_shares(4, span=2.0)[0] == pytest.approx(np.exp(1.0))


@pytest.mark.parametrize("local", ["even", "iid", "random"])
def test_cinic10(local):
    labels = rng().permutation(np.repeat(np.arange(10), 9000))
    parts = normal_density(rng(), labels, 100, local=local)
    counts = counts_of(labels, parts)
    quotas, density = counts.sum(axis=0), norm.pdf(np.arange(-2.7, 3, 0.6))
    assert quotas.max() == 9000
    assert np.abs(quotas - 9000 * density / density.max()).max() < 1
    assert len(set(np.concatenate(parts).tolist())) == quotas.sum()
    assert np.ptp(counts.sum(axis=1)) <= 1
    expected = quotas / 100
    spread = (((counts - expected) ** 2).mean(axis=0) / expected).mean()
    # Rounding alone; one draw in a hypergeometric law, below 1; weights of variance 1/12 around 1/2 on top.
    assert {"even": spread < 0.3, "iid": 0.5 < spread < 1.1, "random": spread > 5}[local]


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        (5, {"total": 1001}, "total=1001 rows, but the classes that take part hold 1000"),
        (5, {"sizes": "empirical"}, "values and quantiles: give one of them"),
        (900, {}, "900 clients for 435 rows"),
    ],
)
def test_normal_density_refuses(clients, options, message):
    with pytest.raises(ValueError, match=message):
        normal_density(rng(), np.repeat(np.arange(10), 100), clients, **options)


CIFAR = np.repeat(np.arange(10), 5000)


def published(labels, clients, seed, thrown=(1, 5, 7), kept=3):
    """The six steps with lists, one slice at a time; None where a client comes out empty or finds too few slices."""
    words, more = random.Random(seed), np.random.RandomState(seed)
    line = sorted(set(labels.tolist()))
    more.shuffle(line)
    wishes = [more.randint(1, len(line)) for _ in range(clients)]
    numbers = [1] * len(line)
    for _ in range(sum(wishes) - len(line)):
        numbers[words.randint(0, len(line) - 1)] += 1
    numbers.sort(reverse=True)
    if sum(numbers) != sum(wishes):
        return None
    slices = {
        label: [piece.tolist() for piece in np.array_split(np.flatnonzero(labels == label), number)]
        for label, number in zip(line, numbers, strict=True)
    }
    parts = []
    for wish in wishes:
        mine, taken = [], 0
        for label in line:
            if taken < wish and slices[label]:
                gone = label in thrown and len(slices[label]) > kept
                piece = slices[label].pop()
                mine += [] if gone else piece
                taken += 1
        if taken < wish or not mine:
            return None
        parts.append(sorted(mine))
        line = sorted(line, key=lambda label: -len(slices[label]))
    return parts


def test_the_published_federation():
    parts = flcir_realworld(rng(), CIFAR, 100, published_seed=43)
    counts = counts_of(CIFAR, parts)
    assert counts.sum(axis=0).tolist() == [5000, 315, 5000, 5000, 5000, 308, 5000, 315, 5000, 5000]
    assert counts.sum() == 35_938
    assert (counts.sum(axis=1).min(), counts.sum(axis=1).max()) == (73, 685)
    assert (counts > 0).sum() == 375
    assert [sorted(part.tolist()) for part in parts] == published(CIFAR, 100, 43)


def test_the_published_federation_depends_on_its_seed_alone():
    numbers = rng(5)
    parts = flcir_realworld(numbers, CIFAR, 100, published_seed=43)
    assert numbers.bit_generator.state == rng(5).bit_generator.state
    others = flcir_realworld(rng(6), CIFAR, 100, published_seed=43)
    assert [part.tolist() for part in parts] == [part.tolist() for part in others]
    other = flcir_realworld(rng(5), CIFAR, 100, published_seed=44)
    assert [len(part) for part in parts] != [len(part) for part in other]


def test_without_the_discard_every_row_is_used():
    parts = flcir_realworld(rng(), CIFAR, 100, discard=False, published_seed=43)
    assert sorted(np.concatenate(parts).tolist()) == list(range(50_000))
    assert [sorted(part.tolist()) for part in parts] == published(CIFAR, 100, 43, thrown=())


SMALL_POOLS = st.lists(st.integers(4, 30), min_size=2, max_size=6).flatmap(
    lambda sizes: st.permutations(np.repeat(np.arange(len(sizes)), sizes).tolist()).map(np.array)
)


@given(
    labels=SMALL_POOLS,
    clients=st.integers(2, 8),
    seed=st.integers(0, 2**32 - 1),
    thrown=st.lists(st.integers(0, 9), max_size=2, unique=True),
    kept=st.integers(0, 3),
)
def test_published_steps_one_slice_at_a_time(labels, clients, seed, thrown, kept):
    thrown = [label for label in thrown if label in labels]
    expected = published(labels, clients, seed, thrown, kept)
    if expected is not None:
        parts = flcir_realworld(rng(), labels, clients, bool(thrown), thrown or (0,), kept, published_seed=seed)
        assert [sorted(part.tolist()) for part in parts] == expected


@given(
    labels=SMALL_POOLS,
    clients=st.integers(2, 12),
    seed=st.integers(0, 99),
    thrown=st.lists(st.integers(-1, 9), max_size=3, unique=True),
    kept=st.integers(0, 3),
)
def test_disjoint_and_nobody_empty_or_no_solution(labels, clients, seed, thrown, kept):
    thrown = [label for label in thrown if label in labels]
    try:
        parts = flcir_realworld(rng(seed), labels, clients, bool(thrown), thrown or (0,), kept)
    except ValueError as error:
        assert "left" in str(error)
        scarce = np.bincount(labels).min() < clients  # else no slice is empty
        assert scarce or set(thrown) & set(labels.tolist())
        return
    together = np.concatenate(parts)
    assert len(parts) == clients
    assert min(map(len, parts)) > 0
    assert len(set(together.tolist())) == len(together)
    counts, held = counts_of(labels, parts), np.bincount(labels)
    assert ((counts > 0).sum(axis=1) <= len(held) - 1).all()
    for label, size in enumerate(held):
        if label not in thrown:
            assert counts[:, label].sum() == size
        else:
            assert (counts[:, label] > 0).sum() <= kept


def test_numbers_of_slices_are_uniform_and_nobody_is_left_with_nothing_among_many():
    labels = np.repeat(np.arange(10), 20_000)
    counts = counts_of(labels, flcir_realworld(rng(2), labels, 3000, discard=False))
    wanted = np.bincount((counts > 0).sum(axis=1), minlength=10)[1:]
    assert wanted.sum() == 3000
    assert ((wanted - 3000 / 9) ** 2 / (3000 / 9)).sum() < 26.1  # 0.999 quantile for 8 degrees of freedom
    with_discard = flcir_realworld(rng(2), labels, 3000)
    assert min(map(len, with_discard)) > 0


def test_realworld_draws_rows_at_random():
    one, other = flcir_realworld(rng(1), CIFAR, 20), flcir_realworld(rng(2), CIFAR, 20)
    assert sorted(one[0].tolist()) != sorted(other[0].tolist())
    runs = np.diff(np.sort(one[0]))
    assert (runs > 1).mean() > 0.5  # not the file's consecutive rows


@pytest.mark.parametrize(
    ("labels", "clients", "options", "message"),
    [
        (np.zeros(9, int), 3, {}, "labels has 1 class"),
        (np.arange(10), 11, {}, "11 clients for 10 rows"),
        (np.repeat(np.arange(10), 5), 40, {}, "100 draws for 40 clients, 50 rows and kept=3 each left a client"),
        (CIFAR, 100, {"discarded": [99]}, r"discarded=\[99\], but no row has label 99"),
        (np.repeat([0, 1, 5], 50), 9, {}, "no row has label 7"),
    ],
)
def test_realworld_refuses(labels, clients, options, message):
    with pytest.raises(ValueError, match=message):
        flcir_realworld(rng(), labels, clients, **options)
