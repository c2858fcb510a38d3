import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_bal.config import check_section, parameters
from fedjax_bal.config.schema import PartitionSection
from fedjax_bal.data.partition import flcir_realworld

CIFAR = np.repeat(np.arange(10), 5000)


def rng(seed=0):
    return np.random.default_rng(seed)


def counts_of(labels, parts):
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


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


LABELS = st.lists(st.integers(4, 30), min_size=2, max_size=6).flatmap(
    lambda sizes: st.permutations(np.repeat(np.arange(len(sizes)), sizes).tolist()).map(np.array)
)


@settings(max_examples=150, deadline=None)
@given(
    labels=LABELS,
    clients=st.integers(2, 8),
    seed=st.integers(0, 2**32 - 1),
    thrown=st.lists(st.integers(0, 9), max_size=2, unique=True),
    kept=st.integers(0, 3),
)
def test_published_steps_one_slice_at_a_time(labels, clients, seed, thrown, kept):
    thrown = [label for label in thrown if label in labels]
    expected = published(labels, clients, seed, thrown, kept)
    if expected is not None:
        parts = flcir_realworld(rng(), labels, clients, True, thrown, kept, published_seed=seed)
        assert [sorted(part.tolist()) for part in parts] == expected


@settings(max_examples=150, deadline=None)
@given(
    labels=LABELS,
    clients=st.integers(2, 12),
    seed=st.integers(0, 99),
    thrown=st.lists(st.integers(-1, 9), max_size=3, unique=True),
    kept=st.integers(0, 3),
)
def test_disjoint_and_nobody_empty_or_no_solution(labels, clients, seed, thrown, kept):
    thrown = [label for label in thrown if label in labels]
    try:
        parts = flcir_realworld(rng(seed), labels, clients, True, thrown, kept)
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


def test_at_most_three_slices_of_a_discarded_class_are_left():
    for seed in range(5):
        counts = counts_of(CIFAR, flcir_realworld(rng(seed), CIFAR, 100))
        assert set(np.flatnonzero(counts.sum(axis=0) == 5000)) == {0, 2, 3, 4, 6, 8, 9}
        for label in (1, 5, 7):
            sizes = counts[counts[:, label] > 0, label]
            assert len(sizes) == 3
            assert sizes.max() - sizes.min() <= 1
        assert (counts.sum(axis=1) > 0).all()


def test_more_kept_slices_leave_more_rows():
    sizes = [np.concatenate(flcir_realworld(rng(1), CIFAR, 100, kept=kept)).size for kept in (0, 3, 10)]
    assert sizes[0] < sizes[1] < sizes[2]
    assert sizes[0] == 35_000


def test_numbers_of_slices_are_uniform_and_nobody_is_left_with_nothing_among_many():
    labels = np.repeat(np.arange(10), 20_000)
    counts = counts_of(labels, flcir_realworld(rng(2), labels, 3000, discard=False))
    wanted = np.bincount((counts > 0).sum(axis=1), minlength=10)[1:]
    assert wanted.sum() == 3000
    assert ((wanted - 3000 / 9) ** 2 / (3000 / 9)).sum() < 26.1  # 0.999 quantile for 8 degrees of freedom
    with_discard = flcir_realworld(rng(2), labels, 3000)
    assert min(map(len, with_discard)) > 0


def test_labels_need_not_count_from_zero():
    labels = np.repeat([-4, 5, 100], 50)
    parts = flcir_realworld(rng(), labels, 30, discarded=(5,), kept=2)
    together = labels[np.concatenate(parts)]
    assert ((together == -4).sum(), (together == 100).sum()) == (50, 50)
    assert 0 < (together == 5).sum() < 50


def test_without_the_discard_classes_that_do_not_occur_are_of_no_account():
    labels = np.repeat([0, 1, 2], 50)
    parts = flcir_realworld(rng(), labels, 9, discard=False)
    assert sorted(np.concatenate(parts).tolist()) == list(range(150))


def test_a_configuration_takes_the_same_seeds():
    _, default = parameters(flcir_realworld, skip=("rng", "labels", "num_clients"))["published_seed"]
    asked = {"scheme": "flcir_realworld", "clients": 100, "seed": 0}
    section = lambda seed: PartitionSection.model_validate({**asked, "published_seed": seed})
    largest = section(2**32 - 1).parameters["published_seed"]
    assert default is None and section(None).parameters["published_seed"] is None
    assert len(flcir_realworld(rng(), CIFAR, 100, published_seed=largest)) == 100
    for seed in (-1, 2**32):
        (problem,) = check_section(PartitionSection, {**asked, "published_seed": seed})[1]
        assert problem.text == f"received {seed}, must be an integer from 0 to 4294967295, or null"


def test_which_rows_is_random():
    one, other = flcir_realworld(rng(1), CIFAR, 20), flcir_realworld(rng(2), CIFAR, 20)
    assert sorted(one[0].tolist()) != sorted(other[0].tolist())
    runs = np.diff(np.sort(one[0]))
    assert (runs > 1).mean() > 0.5  # not the file's consecutive rows


@pytest.mark.parametrize(
    ("labels", "clients", "options", "message"),
    [
        (np.zeros(9, int), 3, {}, "labels has 1 class; each client gets 1 to C - 1"),
        (CIFAR, 1, {}, "num_clients=1 can't take a slice of every class"),
        (np.arange(10), 11, {}, "11 clients for 10 rows"),
        (np.repeat(np.arange(10), 5), 40, {}, "100 draws for 40 clients, 50 rows and kept=3 each left a client"),
        (CIFAR, 100, {"kept": -1}, "kept: received -1, must be an integer of at least 0"),
        (CIFAR, 100, {"discarded": "dog"}, "discarded='dog'; expected a list of labels"),
        (CIFAR, 100, {"discarded": [0.5]}, r"discarded=\[0.5\]; expected a list of labels"),
        (CIFAR, 100, {"discarded": [99]}, r"discarded=\[99\], but no row has label 99; there are \[0, 1, 2, .*, 9\]"),
        (np.repeat([0, 1, 5], 50), 9, {}, r"no row has label 7; there are \[0, 1, 5\]: name some of these, or set"),
        (CIFAR, 100, {"discard": "no"}, "discard: received 'no', must be true or false"),
        (CIFAR, 100, {"published_seed": -1}, "published_seed: received -1, must be an integer of at least 0"),
        (CIFAR, 100, {"published_seed": 2**32}, "published_seed=4294967296; expected at most 4294967295"),
    ],
)
def test_refusals(labels, clients, options, message):
    with pytest.raises(ValueError, match=message):
        flcir_realworld(rng(), labels, clients, **options)
