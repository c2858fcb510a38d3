"""Copies: which clients get them, what they look like, and that storing them changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_bal.balance import augmentation_counts
from fedjax_bal.data import augment, extra_bytes, federate
from fedjax_bal.data.augmentation import _MAPS
from fedjax_bal.data.batches import gather
from fedjax_bal.parts import Augmentation
from fedjax_bal.recipes import RECIPES

SIDE = 12
COPIES = np.array([0, 3, 1])
LABELS = np.array([1, 0, 2, 1, 0, 0, 2, 1, 0, 0])
CLIENTS = [np.array([0, 1, 2]), np.array([3, 4, 5, 6]), np.array([], int), np.array([7, 8, 0])]


@pytest.fixture
def federation():
    images = np.random.default_rng(0).integers(0, 256, (len(LABELS), SIDE, SIDE, 2), dtype=np.uint8)
    return federate(images, LABELS, CLIENTS, 3)


def everything(federation):
    """Pixels and labels of all rows, client after client."""
    total = len(federation.rows)
    batch = gather(jax.tree.map(jnp.asarray, federation), jnp.arange(total), jnp.ones(total, bool))
    return np.asarray(batch.images), np.asarray(batch.labels)


def test_clients_get_copies_of_their_own_rows(federation):
    larger = augment(federation, COPIES, store=False)
    assert larger.class_counts.tolist() == (federation.class_counts * (1 + COPIES)).tolist()
    assert np.diff(larger.offsets).tolist() == larger.class_counts.sum(1).tolist()
    for client, rows in enumerate(CLIENTS):
        span = slice(larger.offsets[client], larger.offsets[client + 1])
        pairs = list(zip(larger.rows[span].tolist(), larger.copy[span].tolist(), strict=True))
        wanted = [(row, copy) for row in rows for copy in range(1 + COPIES[LABELS[row]])]
        assert sorted(pairs) == sorted(wanted)
        classes = LABELS[larger.rows[span]]
        assert (np.diff(classes) >= 0).all()
    assert extra_bytes(larger) == (larger.copy > 0).sum() * SIDE * SIDE * 2 and extra_bytes(federation) == 0


@pytest.mark.slow
def test_stored_copies_have_the_same_pixels_as_those_made_when_drawn(federation, monkeypatch):
    monkeypatch.setattr("fedjax_bal.data.augmentation._BLOCK", 4)  # so that there are several blocks
    made, stored = (augment(federation, COPIES, store=store) for store in (False, True))
    for ours, theirs in zip(everything(made), everything(stored), strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert stored.warp is None and stored.copy.tolist() == made.copy.tolist()
    assert extra_bytes(stored) == extra_bytes(made)
    # Row 0 belongs to two clients, whose copies are the same images.
    assert len(stored.images) == len(LABELS) + len({pair for pair in zip(made.rows, made.copy, strict=True) if pair[1]})


@pytest.mark.slow
def test_originals_keep_their_pixels_and_copies_differ(federation):
    larger = augment(federation, COPIES)
    images, labels = everything(larger)
    plain, _ = everything(federation)
    np.testing.assert_array_equal(images[larger.copy == 0], plain)
    distinct = np.unique(images.reshape(len(images), -1), axis=0)
    rows = augment(federation, COPIES, store=False).rows
    assert len(distinct) == len(set(zip(rows, larger.copy, strict=True)))
    assert np.bincount(labels).tolist() == larger.class_counts.sum(0).tolist()


@pytest.mark.slow
def test_ranges_of_zero_copy_exactly(federation):
    larger = augment(federation, COPIES, shift=0, rotate=0, shear=0, zoom=0)
    images, _ = everything(larger)
    plain, _ = everything(federation)
    np.testing.assert_array_equal(images, np.repeat(plain, 1 + COPIES[LABELS[federation.rows]], axis=0))


def test_the_seed_decides_what_copies_look_like(federation):
    a, b, c = (augment(federation, COPIES, seed=seed).images for seed in (0, 0, 1))
    assert a.tobytes() == b.tobytes() and a.tobytes() != c.tobytes()


def test_maps_stay_within_their_ranges(federation):
    maps = augment(federation, COPIES, shift=0.25, rotate=0, shear=0, zoom=0, store=False).warp.maps
    assert maps.shape == (_MAPS, 2, 3)
    np.testing.assert_array_equal(maps[:, :, :2], np.broadcast_to(np.eye(2), (_MAPS, 2, 2)))
    assert 2.9 < np.abs(maps[:, :, 2]).max() <= 3.0
    assert (maps * 128 == np.round(maps * 128)).all()


def test_the_part_augments_by_the_counts_of_all_clients(federation):
    counts = federation.class_counts.sum(0)
    wanted = np.asarray(augmentation_counts(counts, 1.0, "floor"))
    assert wanted.any()
    larger = Augmentation(alpha=1.0).prepare_federation(federation)
    assert larger.class_counts.tolist() == (federation.class_counts * (1 + wanted)).tolist()
    drawn = Augmentation(alpha=1.0, mode="stochastic").prepare_federation(federation)
    assert (drawn.class_counts >= larger.class_counts).all()
    assert Augmentation(alpha=1.0, max_copies=0).prepare_federation(federation) is federation


def test_copies_by_row(federation):
    by_row = np.arange(len(federation.rows)) % 3
    larger = augment(federation, copies_per_row=by_row)
    assert np.bincount(larger.copy).tolist() == [len(by_row), (by_row > 0).sum(), (by_row > 1).sum()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"copies_per_class": np.array([1, 2])}, r"copies_per_class: received shape \(2,\) of int64"),
        ({"copies_per_class": np.array([1.0, 2, 3])}, "must be integers"),
        ({"copies_per_class": np.array([1, -2, 3])}, "0 or more"),
        ({"copies_per_class": COPIES, "copies_per_row": COPIES}, "received both or none"),
        ({}, "received both or none"),
        ({"copies_per_class": COPIES, "zoom": 1.0}, "zoom: received 1.0"),
        ({"copies_per_class": COPIES * 10**9}, "copies of a sample; at most 2147483647"),
        ({"copies_per_class": np.array([0, 10**9, 0])}, "makes 4,000,000,010 rows"),
        *[
            ({"copies_per_class": copies, **options}, message)
            for copies in (COPIES, COPIES * 0)
            for options, message in (
                ({"seed": -1}, "^seed: received -1, must be an integer from 0 to 4294967295"),
                ({"seed": 2**40}, "^seed: received 1099511627776, must be an integer from 0 to 4294967295"),
                ({"seed": 1.5}, "^seed: received 1.5, must be an integer"),
                ({"seed": True}, "^seed: received True"),
                ({"shift": "a"}, "^shift: received 'a', must be a finite number from 0 to 1"),
                ({"shift": None}, "^shift: received None"),
                ({"rotate": float("nan")}, "^rotate: received nan"),
                ({"shear": -0.1}, "^shear: received -0.1, must be a finite number from 0 to 10"),
                ({"store": "no"}, "^store: received 'no', must be true or false"),
            )
        ],
    ],
)
def test_refused(federation, arguments, message):
    with pytest.raises(ValueError, match=message):
        augment(federation, **arguments)


def test_bytes_of_copies_of_floats():
    plain = federate(np.zeros((2, 4, 4, 1), np.float32), np.array([0, 1]), [np.arange(2), np.array([1])], 2)
    assert extra_bytes(augment(plain, np.array([0, 3]), store=False)) == 2 * 3 * 64


def test_augmenting_twice_is_refused(federation):
    for store in (True, False):
        with pytest.raises(ValueError, match="that has copies"):
            augment(augment(federation, COPIES, store=store), COPIES)


def test_numpy_scalars_and_the_largest_seed_are_accepted(federation):
    plain = augment(federation, COPIES, seed=2**32 - 1, shift=0.5)
    numpy = augment(federation, COPIES, seed=np.uint32(2**32 - 1), shift=np.float32(0.5), store=np.bool_(True))
    assert plain.images.tobytes() == numpy.images.tobytes()


@pytest.fixture
def nothing_is_made(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("made something before it was refused")

    for name in ("random_matrices", "_with_copies", "_stored"):
        monkeypatch.setattr(f"fedjax_bal.data.augmentation.{name}", refuse)


def set_free(monkeypatch, free):
    monkeypatch.setattr("fedjax_bal.data.augmentation.available_bytes", lambda: free)


def test_pixels_that_do_not_fit_are_refused_before_anything_is_made(federation, monkeypatch, nothing_is_made):
    set_free(monkeypatch, 10**9)
    message = r"received 4,000,000 of them, whose pixels take 1.15 GB; .* but 1 GB are free: "  # 288 bytes an image
    with pytest.raises(ValueError, match=message + r"ask for .*smaller alpha, or max_copies\)"):
        augment(federation, np.array([10**6, 0, 0]))


def test_rows_that_do_not_fit_are_refused(federation, monkeypatch, nothing_is_made):
    set_free(monkeypatch, 10**6)
    with pytest.raises(ValueError, match="whose rows take 0.032 GB"):
        augment(federation, np.array([0, 10**6, 0]), store=False)
    with pytest.raises(ValueError, match=r"whose pixels take .*max_copies\)$"):  # storing nothing would not help
        augment(federation, np.array([0, 10**6, 0]))


def test_a_copy_of_an_image_that_two_clients_share_is_counted_once(federation, monkeypatch, nothing_is_made):
    set_free(monkeypatch, 1)
    assert federation.class_counts[:, 1].sum() == 4 and (LABELS == 1).sum() == 3
    with pytest.raises(ValueError, match=rf"received 4,000 of them, whose pixels take {3000 * 288 / 1e9:.3g} GB"):
        augment(federation, np.array([0, 1000, 0]))


def test_what_fits_is_made(federation, monkeypatch):
    enough = 300_000
    set_free(monkeypatch, enough)
    assert augment(federation, COPIES * 10).images.nbytes < enough
    with pytest.raises(ValueError, match="GB are free"):
        augment(federation, COPIES * 200)
    assert augment(federation, COPIES * 200, store=False).warp is not None
    set_free(monkeypatch, 0)
    assert augment(federation, COPIES * 0) is federation
    set_free(monkeypatch, None)
    assert len(augment(federation, COPIES * 200).images) > 200


def test_the_recipe_checks_its_options_with_and_without_augmentation():
    wrong = {"mode": "bogus", "max_copies": -3, "seed": -1, "shift": 2, "rotate": "a", "shear": None, "zoom": 1}
    for name, value in {**wrong, "store": "no"}.items():
        for alpha in (None, 0.5):
            with pytest.raises(ValueError, match=rf"^astraea: {name}: received {value!r}"):
                RECIPES["astraea"](alpha=alpha, **{name: value})
    with pytest.raises(ValueError, match="astraea: seed: received 4294967296"):
        RECIPES["astraea"](seed=2**32)
    (part,) = RECIPES["astraea"](seed=2**32 - 1).parts
    assert part.seed == 2**32 - 1 and not RECIPES["astraea"](alpha=None).parts


def test_the_part_takes_any_limit_and_refuses_a_seed(federation):
    free = Augmentation(alpha=1.0).prepare_federation(federation)
    assert Augmentation(alpha=1.0, max_copies=2**40).prepare_federation(federation).copy.tolist() == free.copy.tolist()
    for mode in ("floor", "target"):
        with pytest.raises(ValueError, match="seed: received 1.5"):
            Augmentation(mode=mode, seed=1.5).prepare_federation(federation)
