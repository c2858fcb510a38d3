"""The made data set: its difficulty, its seed, and that it grows without changing."""

import numpy as np
import pytest
from rounding import SUM

from fedjax_bal.config import load_config
from fedjax_bal.data import DataError, federate, load, partition
from fedjax_bal.data.sources import synthetic


def centres_of(dataset, classes):
    return np.stack([dataset.train_images[dataset.train_labels == label].mean(0) for label in range(classes)])


def nearest(centres, rows):
    return ((rows[:, None] - centres) ** 2).sum(-1).argmin(1)


@pytest.mark.parametrize(("spread", "documented"), [(0.15, 0.99), (0.25, 0.84), (0.5, 0.46)])
def test_the_nearest_centre_is_right_as_often_as_documented(spread, documented):
    assert f"| {spread:g} |" in synthetic.make_clouds.__doc__ and f" {documented} |" in synthetic.make_clouds.__doc__
    shares = []
    for seed in range(5):
        dataset = load("synthetic", rows=20_000, test_rows=5_000, spread=spread, seed=seed)
        shares.append((nearest(centres_of(dataset, 10), dataset.test_images) == dataset.test_labels).mean())
    assert np.mean(shares) == pytest.approx(documented, abs=0.015)


def test_clouds_are_round_and_centres_are_about_1_from_each_other():
    dataset = load("synthetic", rows=60_000, classes=4, features=6, spread=0.5, seed=3)
    centres = centres_of(dataset, 4)
    first, second = np.triu_indices(4, 1)
    assert ((centres[first] - centres[second]) ** 2).sum(1).mean() == pytest.approx(1, abs=0.03)
    noise = dataset.train_images - centres[dataset.train_labels]
    np.testing.assert_allclose(np.cov(noise.T), 0.25 * np.eye(6), atol=0.01)


def test_classes_are_even_and_rows_are_small():
    dataset = load("synthetic", rows=1_003, classes=7, features=3, test_rows=70)
    assert set(np.bincount(dataset.train_labels).tolist()) == {143, 144}
    assert np.bincount(dataset.test_labels).tolist() == [10] * 7
    assert (dataset.train_images.shape, dataset.train_images.dtype) == ((1_003, 3), np.float32)
    assert dataset.train_labels.dtype == np.int32 and dataset.class_names == tuple("0123456")
    np.testing.assert_allclose(dataset.mean, dataset.train_images.mean(0), atol=SUM)


def test_more_rows_leave_the_first_ones_and_the_test_rows_as_they_are(monkeypatch):
    few, again, other = (load("synthetic", rows=500, seed=seed) for seed in (1, 1, 2))
    monkeypatch.setattr(synthetic, "_BLOCK", 64)
    many = load("synthetic", rows=900, seed=1)
    np.testing.assert_array_equal(few.train_images, again.train_images)
    np.testing.assert_array_equal(few.train_images, many.train_images[:500])
    np.testing.assert_array_equal(few.test_images, many.test_images)
    assert not np.array_equal(few.train_images[:10], other.train_images[:10])
    assert not np.array_equal(few.train_images[:10], few.test_images[:10])


def test_it_has_keys_in_a_configuration_and_becomes_a_long_tail():
    config = load_config(None, ["dataset={name: synthetic, rows: 1000, classes: 4}", "methods=[fedavg]"])
    assert config.dataset.parameters["rows"] == 1000 and config.dataset.parameters["spread"] == 0.25
    dataset = load("synthetic", **config.dataset.parameters)
    parts = partition.draw(
        dataset.train_labels, scheme="iid", clients=5, seed=0, imbalance_factor=10, imbalance_profile="exponential",
        imbalance_order="label", parameters={},
    )  # fmt: skip
    assert federate(dataset, parts).class_counts.sum(0).tolist() == [250, 116, 53, 25]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rows": 0}, ValueError, "rows: received 0"),
        ({"rows": 9}, DataError, "dataset.rows: received 9"),
        ({"test_rows": 5}, DataError, "dataset.test_rows: received 5"),
        ({"classes": 1}, ValueError, "classes: received 1"),
        ({"spread": -1}, ValueError, "spread: received -1"),
        ({"row": 10}, ValueError, "data set synthetic takes rows, classes, .*, received 'row'"),
        (
            {"rows": 2**31 - 1, "features": 10**6},
            DataError,
            "synthetic rows need .* GiB, but only .* available; take few",
        ),
    ],
)
def test_a_wrong_option_is_named(options, error, message):
    with pytest.raises(error, match=message):
        load("synthetic", **options)
