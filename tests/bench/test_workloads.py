"""The workloads: counts and sizes as stated, rows that exist, the same ones every time."""

import numpy as np
import pytest

from fedjax_bal import models
from fedjax_bal.bench import workloads
from fedjax_bal.bench.workloads import WORKLOADS, material, model_of

CLIENTS = {"W1": 1000, "W2": 50, "W3": 1000, "W4": 500, "W4b": 5000, "W5": 100, "W6": 100, "W7": 20}
COHORT = {"W1": 50, "W2": 10, "W3": 100, "W4": 25, "W4b": 250, "W5": 10, "W6": 100, "W7": 20}
SIZE = {"W1": 50, "W2": 1000, "W3": 60, "W5": 500, "W6": 500, "W7": 3000}
BATCH = {"W1": 10, "W2": 50, "W3": 10, "W4": 20, "W4b": 20, "W5": 50, "W6": 50, "W7": 10}
PARAMS = {"W3": 784 * 64 + 64 + 640 + 10, "W2": 25 * 16 + 16 + 25 * 512 + 32 + 7 * 7 * 32 * 128 + 128 + 1290}


@pytest.fixture
def labels():
    """Labels of every source, without its images."""
    return {w.name: np.arange(w.source.examples) % w.source.num_classes for w in WORKLOADS.values()}


def dealt(name, labels, seed=0):
    return WORKLOADS[name].deal(np.random.default_rng(seed), labels[name])


@pytest.mark.parametrize("name", WORKLOADS)
def test_clients_hold_rows_that_exist_once_each_and_the_same_every_time(name, labels):
    rows = dealt(name, labels)
    assert len(rows) == CLIENTS[name]
    assert (WORKLOADS[name].clients_per_round, WORKLOADS[name].batch_size) == (COHORT[name], BATCH[name])
    for mine, again in zip(rows, dealt(name, labels), strict=True):
        assert len(set(mine.tolist())) == len(mine)
        assert (mine >= 0).all() and (mine < len(labels[name])).all()
        assert (mine == again).all()
    assert any((a.shape != b.shape) or (a != b).any() for a, b in zip(rows, dealt(name, labels, 1), strict=True))


@pytest.mark.parametrize("name", SIZE)
def test_equal_clients_have_the_stated_size(name, labels):
    assert {len(mine) for mine in dealt(name, labels)} == {SIZE[name]}


def test_two_classes_each_and_all_classes_alike(labels):
    counts = np.stack([np.bincount(labels["W2"][mine], minlength=10) for mine in dealt("W2", labels)])
    assert ((counts > 0).sum(1) == 2).all()
    assert set(counts[counts > 0].tolist()) == {500}
    assert (counts.sum(0) == 5000).all()


def test_shards_hold_one_class_each_and_clients_two_of_them(labels):
    counts = np.stack([np.bincount(labels["W6"][mine], minlength=10) for mine in dealt("W6", labels)])
    assert set(counts.ravel().tolist()) == {0, 250, 500}
    assert (counts.sum(0) == 5000).all()


def test_dirichlet_labels_are_skewed(labels):
    counts = np.stack([np.bincount(labels["W5"][mine], minlength=10) for mine in dealt("W5", labels)])
    # E[sum of squared shares] = (alpha + 1) / (C alpha + 1) = 0.55 for C = 10, alpha = 0.1.
    assert ((counts / 500) ** 2).sum(1).mean() == pytest.approx(0.55, abs=0.05)


def test_ragged_sizes_follow_their_laws(labels):
    even, heavy = (np.array([len(mine) for mine in dealt(name, labels)]) for name in ("W4", "W4b"))
    assert (even.min(), even.max()) == (131, 336)
    assert heavy.min() == 10
    above = heavy[heavy > 10]
    assert heavy.mean() == pytest.approx(235, rel=0.1)
    assert np.median(above) == pytest.approx(235 * np.exp(-0.72), rel=0.05)


def test_turned_images_are_47_classes_of_two_sets(monkeypatch):
    rng = np.random.default_rng(3)
    stocks = {name: rng.integers(0, 256, (20, 3, 3, 1), np.uint8) for name in ("mnist", "fashion_mnist")}
    monkeypatch.setattr(workloads, "_read", lambda name: lambda folder: (stocks[name], np.arange(20) % 10))
    images, labels = workloads.pixels(workloads.TURNED, "anywhere", rng)
    assert images.dtype == np.uint8
    assert labels.dtype == np.int32
    assert np.bincount(labels).tolist() == [2] * 47
    straight = images[labels == 4][1]
    quarter, half, cloth = (images[labels == k][1] for k in (14, 24, 34))
    at = lambda image, turn: [[turn(image, i, j) for j in range(3)] for i in range(3)]
    assert (straight == stocks["mnist"][14]).all()
    assert (quarter == at(straight, lambda image, i, j: image[j, 2 - i])).all()
    assert (half == at(straight, lambda image, i, j: image[2 - i, 2 - j])).all()
    assert (cloth == stocks["fashion_mnist"][14]).all()


def test_random_pixels_are_the_same_every_time():
    few = WORKLOADS["W3"]._replace(source=workloads.FASHION_MNIST._replace(examples=500))
    first, second = (material(few, seed=4) for _ in range(2))
    assert (first.images == second.images).all()
    assert (first.images != material(few, seed=5).images).any()


@pytest.mark.parametrize("name", PARAMS)
def test_models_have_the_stated_size(name):
    assert models.num_params(model_of(WORKLOADS[name])) == PARAMS[name]
