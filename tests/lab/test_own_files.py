"""A configuration with one's own files, and a partition by who made the images."""

import numpy as np
import pytest
import small_run

from fedjax_bal.lab.setup import SetupError, set_up

MAKERS = np.array(["Zoe", "Abe", "Bo"])[np.repeat([0, 1, 2], [6, 10, 4])]


@pytest.fixture
def own(tmp_path):
    """A file of 20 + 8 images by three people."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (28, 6, 6, 3), dtype=np.uint8)
    labels = np.arange(28) % 4
    arrays = {"train_images": images[:20], "train_labels": labels[:20], "test_images": images[20:]}
    np.savez(tmp_path / "mine.npz", **arrays, test_labels=labels[20:], train_clients=MAKERS)
    return tmp_path, images[:20]


def federation(folder, *overrides, path="mine.npz"):
    changes = (f"dataset={{name: npz, path: {path}}}", "selection.clients_per_round=1", *overrides)
    return set_up(small_run.config(folder, *changes), data_dir=str(folder)).simulations[0].federation


def test_everybody_is_a_client(own):
    folder, images = own
    found = federation(folder, "partition={scheme: natural, clients: 3, seed: 5}")
    assert np.diff(found.offsets).tolist() == [10, 4, 6]  # Abe, Bo, Zoe
    for client, name in enumerate(("Abe", "Bo", "Zoe")):
        rows = found.rows[found.offsets[client] : found.offsets[client + 1]]
        assert sorted(rows.tolist()) == np.flatnonzero(name == MAKERS).tolist()
    np.testing.assert_allclose(found.mean, (images / 255).mean(axis=(0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(found.std, (images / 255).std(axis=(0, 1, 2)), rtol=1e-6)
    assert (found.num_classes, found.images.shape) == (4, (20, 6, 6, 3))


def test_who_made_what_stays_true_after_rows_are_carved_out(own):
    folder, _ = own
    found = federation(folder, "partition={scheme: natural, clients: 3, seed: 0}", "auxiliary.per_class=1")
    taken = found.auxiliary["balanced"]
    for client, name in enumerate(("Abe", "Bo", "Zoe")):
        rows = found.rows[found.offsets[client] : found.offsets[client + 1]]
        assert sorted(rows.tolist()) == sorted(set(np.flatnonzero(name == MAKERS)) - set(taken.tolist()))


def test_what_can_not_be_done_is_explained(own):
    folder, _ = own
    with pytest.raises(SetupError, match="partition: 4 clients, but 3 writers or users have rows"):
        federation(folder, "partition={scheme: natural, clients: 4, seed: 0}")
    with pytest.raises(ValueError, match=r"dataset.path: there is no .*absent.npz; a relative path counts"):
        federation(folder, path="absent.npz")
    natural = "partition={scheme: natural, clients: 4, seed: 0}"
    with pytest.raises(SetupError, match="partition: natural needs a data set that says whose its images are"):
        set_up(small_run.config(folder, natural))
