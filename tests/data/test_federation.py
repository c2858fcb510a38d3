import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rounding import FORMULA, SUM

from fedjax_bal.data import augment, federate, gather
from fedjax_bal.types import Dataset, Federation

LABELS = np.array([2, 0, 1, 2, 0, 1])
IMAGES = np.arange(6 * 2 * 2 * 3, dtype=np.uint8).reshape(6, 2, 2, 3)


def rng(seed=0):
    return np.random.default_rng(seed)


def rows(*lists):
    return [np.array(one, np.int64) for one in lists]


def test_by_hand():
    federation = federate(IMAGES, LABELS, rows([3, 5, 0, 4], [], [5]), 4, {"server": [1]}, mean=0.5, std=[0.25, 0.5, 1])
    assert isinstance(federation, Federation)
    assert federation.rows.tolist() == [4, 5, 3, 0, 5]  # class 0, 1, 2, 2 in the order listed; then client 2
    assert federation.offsets.tolist() == [0, 4, 4, 5]
    assert federation.class_counts.tolist() == [[1, 1, 2, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert federation.copy.tolist() == [0] * 5
    assert federation.auxiliary["server"].tolist() == [1]
    assert federation.mean.tolist() == [0.5, 0.5, 0.5]
    assert federation.std.tolist() == [0.25, 0.5, 1]
    assert (federation.num_clients, federation.num_classes) == (3, 4)
    assert federation.images is IMAGES
    for array in (federation.labels, federation.rows, federation.offsets, federation.class_counts, federation.copy):
        assert array.dtype == np.int32
    assert federation.auxiliary["server"].dtype == np.int32
    assert federation.mean.dtype == federation.std.dtype == np.float32


def test_defaults():
    federation = federate(IMAGES, LABELS, rows([0]), 3)
    assert federation.mean.tolist() == [0.0] * 3
    assert federation.std.tolist() == [1.0] * 3
    assert dict(federation.auxiliary) == {}
    assert federate(IMAGES.astype(np.float16), LABELS, [[0, 1], ()], 3).offsets.tolist() == [0, 2, 2]


NAMES = ("a", "b", "c", "never seen")
DATASET = Dataset(IMAGES, LABELS, IMAGES[:1], LABELS[:1], NAMES, None, (0.1, 0.2, 0.3), (0.25, 0.5, 1.0))


def test_a_data_set_brings_its_labels_classes_and_constants():
    federation = federate(DATASET, rows([3, 5], [0]), auxiliary={"validation": np.array([1])}, tests=rows([2], []))
    arrays = federate(
        IMAGES, LABELS, rows([3, 5], [0]), 4, {"validation": np.array([1])},
        mean=DATASET.mean, std=DATASET.std, tests=rows([2], []),
    )  # fmt: skip
    assert federation.images is IMAGES and federation.num_classes == 4
    for own, same in zip(jax.tree.leaves(federation), jax.tree.leaves(arrays), strict=True):
        np.testing.assert_array_equal(own, same)
    raw = federate(DATASET, rows_per_client=rows([3, 5], [0]), mean=0, std=1)
    assert (raw.mean.tolist(), raw.std.tolist()) == ([0, 0, 0], [1, 1, 1])
    assert federate(DATASET, rows([3]), mean=0).std.tolist() == [0.25, 0.5, 1]


# Six training rows of three users, four test rows, of which one is of a user without training rows.
OTHERS = IMAGES[:4] + 100
USERS = Dataset(
    IMAGES, LABELS, OTHERS, LABELS[:4], NAMES, np.array([2, 0, 1, 2, 0, 1], np.int32), (0.1,) * 3, (1.0,) * 3,
    client_names=("Ulm", "Jena", "Mainz", "Kassel"), test_clients=np.array([1, 3, 2, 1], np.int32),
)  # fmt: skip


def test_clients_that_are_users_have_their_names_and_test_rows():
    federation = federate(USERS, rows([0, 3], [5], [4, 1]))  # Mainz, a part of Jena, Ulm, which has no test rows
    assert federation.client_names == ("Mainz", "Jena", "Ulm")
    assert [federation.client_name(client) for client in range(3)] == ["Mainz", "Jena", "Ulm"]
    assert (federation.class_names, federation.input_names) == (NAMES, None)
    assert federation.tests is not None
    assert (federation.tests.rows.tolist(), federation.tests.offsets.tolist()) == ([8, 6, 9], [0, 1, 3, 3])
    np.testing.assert_array_equal(federation.images[federation.tests.rows], OTHERS[[2, 0, 3]])
    np.testing.assert_array_equal(federation.labels[federation.tests.rows], LABELS[[2, 0, 3]])
    # Training is the same as without them.
    without = federate(USERS._replace(test_clients=None), rows([0, 3], [5], [4, 1]))
    assert without.tests is None and without.images is IMAGES and without.client_names == federation.client_names
    for name in ("rows", "offsets", "class_counts", "mean", "std"):
        np.testing.assert_array_equal(getattr(federation, name), getattr(without, name))
    np.testing.assert_array_equal(federation.images[:6], IMAGES)


def test_a_client_without_rows_leaves_the_others_their_names_and_test_rows():
    federation = federate(USERS, rows([0, 3], [], [5]))
    assert federation.client_names == ("Mainz", "1 (no rows)", "Jena")
    assert federation.tests is not None
    assert (federation.tests.rows.tolist(), federation.tests.offsets.tolist()) == ([8, 6, 9], [0, 1, 1, 3])


@pytest.mark.parametrize(
    "clients",
    [rows([0, 3, 2], [1, 4]), rows([0], [3], [1, 4]), rows([0, 1, 2, 3, 4, 5])],
    ids=["two users in one client", "a user in two clients", "one client"],
)
def test_other_clients_have_numbers(clients):
    federation = federate(USERS, clients)
    assert federation.client_names is None and federation.tests is None and federation.client_name(1) == "1"
    assert federation.images is IMAGES and federation.class_names == NAMES


def test_test_rows_that_are_given_count_and_users_without_names_have_numbers():
    federation = federate(USERS, rows([0], [5]), tests=rows([3], []))
    assert federation.tests is not None and federation.tests.rows.tolist() == [3] and federation.images is IMAGES
    assert federation.client_names == ("Mainz", "Jena")
    unnamed = federate(USERS._replace(client_names=None), rows([0, 3], [5]))
    assert unnamed.client_names is None and unnamed.tests is not None and unnamed.tests.rows.tolist() == [8, 6, 9]
    strangers = federate(USERS._replace(test_clients=np.full(4, 3)), rows([0, 3], [5]))
    assert strangers.tests is None and strangers.images is IMAGES


def test_rows_of_the_server_that_follow_the_data_sets_make_no_difference():
    more = USERS._replace(train_images=np.concatenate([IMAGES, OTHERS]), train_labels=np.append(LABELS, LABELS[:4]))
    federation = federate(more, rows([0, 3], [5]), auxiliary={"balanced": np.array([6, 7])})
    assert federation.client_names == ("Mainz", "Jena")
    assert federation.tests is not None and federation.tests.rows.tolist() == [12, 10, 13]
    assert federate(more, rows([0, 3], [6])).client_names is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"client_names": ("Ulm",)}, "client_names: received 1 names, but train_clients has number 2"),
        ({"test_clients": np.array([1])}, r"test_clients has shape \(1,\) .* 4 integers"),
        ({"test_clients": np.full(4, 0.5)}, "test_clients has .* float64"),
        ({"test_images": OTHERS.astype(np.float32)}, r"test_images are float32\[4, 2, 2, 3\], and train_images uint8"),
        ({"class_names": ("ill", "well", "ill ", "other")}, "class_names: received 'ill' 2 times"),
        (
            {"mean": 33.3, "std": 78.6},
            r"mean=\[33.2999.*, std=.*: bytes are scaled to \[0, 1\] before they are normalised",
        ),
        ({"mean": 0, "std": 255}, r"std=\[255.0, 255.0, 255.0\]: bytes are scaled"),
        ({"test_images": OTHERS[:, :1]}, r"test_images are uint8\[4, 1, 2, 3\], and train_images uint8\[6, 2, 2, 3\]"),
    ],
)
def test_a_data_set_whose_arrays_do_not_fit_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        federate(USERS._replace(**change), rows([0, 3], [5]))


def test_names_are_kept_by_copies_and_shown_in_brief():
    federation = federate(USERS._replace(input_names=tuple("abcde")), rows([0, 3], [5], [4, 1]))
    larger = augment(federation, [0, 1, 1, 0])
    assert np.count_nonzero(larger.copy) and larger.names == federation.names
    assert jax.tree.map(lambda leaf: leaf, federation).client_names == ("Mainz", "Jena", "Ulm")
    shown = "inputs=uint8[10, 2, 2, 3] (a, b, c, ...), clients=3 (Mainz, Jena, Ulm), rows=5, classes=4 (a, b, c, ...)"
    assert repr(federation) == f"Federation({shown}, auxiliary=[], tests=3)"
    assert "Mainz" not in repr(federation.without_names())


def test_a_million_names_cost_nothing_where_programs_read_the_federation():
    names = tuple(map(str, range(10**6)))
    named = federate(USERS._replace(client_names=names), rows([0, 3], [5]))
    leaves, shape = jax.tree.flatten(named.without_names())
    assert names not in shape.node_data()[1:] and "Names" not in str(shape)
    assert len(leaves) == len(jax.tree.leaves(named))


@pytest.mark.parametrize("scaled", [False, True])
def test_a_data_set_without_constants_is_normalised_with_its_own(scaled):
    pixels = IMAGES / np.float64(255)
    images = pixels.astype(np.float32) if scaled else IMAGES
    federation = federate(Dataset(images, LABELS, IMAGES, LABELS, NAMES), rows([0, 1]))
    np.testing.assert_allclose(federation.mean, pixels.mean((0, 1, 2)), rtol=FORMULA)
    np.testing.assert_allclose(federation.std, pixels.std((0, 1, 2)), rtol=FORMULA)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((DATASET, LABELS, rows([0]), 3), "received a data set, whose labels and classes are known"),
        ((DATASET, LABELS, rows([0])), "received a data set, whose labels and classes are known"),
        ((DATASET,), "pass rows_per_client once"),
        ((IMAGES, rows([0])), r"takes \(dataset, rows_per_client\) or \(images, .*received no rows_per_client"),
        ((IMAGES, LABELS, rows([0])), "received no num_classes"),
    ],
)
def test_arguments_of_neither_form_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        federate(*arguments)


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=40).map(np.array),
    clients=st.lists(st.lists(st.integers(0, 39), unique=True, max_size=12), min_size=1, max_size=8),
)
def test_against_plain_loops(labels, clients):
    lists = [[row for row in client if row < len(labels)] for client in clients]
    federation = federate(np.zeros((len(labels), 1, 1, 1), np.uint8), labels, rows(*lists), 5)
    expected = [sorted(client, key=lambda row: labels[row]) for client in lists]
    assert np.split(federation.rows, federation.offsets[1:-1])[0].tolist() == expected[0]
    assert federation.rows.tolist() == [row for client in expected for row in client]
    assert np.diff(federation.offsets).tolist() == [len(client) for client in lists]
    counts = [[sum(int(labels[row] == label) for row in client) for label in range(5)] for client in lists]
    assert federation.class_counts.tolist() == counts
    assert federation.copy.shape == federation.rows.shape


def test_rows_by_client_in_any_container():
    listed = rows([3, 5], [0], [1, 2])
    wanted = federate(DATASET, listed)
    scrambled = {client: listed[client] for client in (2, 0, 1)}  # as `net_dataidx_map` of other simulators
    for container in (scrambled, {np.int64(client): own for client, own in scrambled.items()}, iter(listed)):
        found = federate(DATASET, container)
        np.testing.assert_array_equal(found.rows, wanted.rows)
        np.testing.assert_array_equal(found.offsets, wanted.offsets)
    tested = federate(DATASET, {0: [0], 1: [1]}, tests={1: [3], 0: [2]})
    assert tested.tests.rows.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows_per_client": rows([0], [1, 6])}, r"rows_per_client\[1\] lists row 6"),
        ({"rows_per_client": rows([0], [], [1, -1])}, r"rows_per_client\[2\] lists row -1"),
        ({"rows_per_client": rows([0, 3], [4, 1, 4])}, r"rows_per_client\[1\] lists row 4 more than once"),
        ({"rows_per_client": []}, "at least one client"),
        ({"rows_per_client": {1: [0], 2: [1]}}, "keys 1, 2"),
        ({"rows_per_client": 3}, "rows_per_client is 3"),
        ({"rows_per_client": [LABELS > 0]}, r"rows_per_client\[0\] has shape \(6,\) and type bool.*flatnonzero"),
        ({"rows_per_client": [np.array([[0]])]}, r"shape \(1, 1\)"),
        ({"num_classes": 2}, r"labels lie in 0\.\.2"),
        ({"num_classes": 0}, "num_classes: received 0"),
        ({"labels": LABELS[:5]}, "for 5 labels"),
        ({"labels": LABELS * 1.0}, "labels has shape"),
        ({"images": IMAGES[..., 0]}, "a grey image has K = 1"),
        ({"images": np.zeros((6, 3, 8, 9))}, r"\(6, 3, 8, 9\), .* \(6, 8, 9, 3\): np.moveaxis\(images, 1, -1\)"),
        ({"images": IMAGES.astype(bool)}, "type bool"),
        ({"auxiliary": {"a": np.array([2, 0])}}, r"auxiliary\['a'\] lists row 0"),
        ({"auxiliary": {"a": np.array([True])}}, r"auxiliary\['a'\] has shape \(1,\) and type bool"),
        ({"mean": [1, 2]}, "mean=.*one or 3"),
        ({"mean": "own"}, "mean='own'"),
        ({"std": 0}, "std=0"),
        ({"images": IMAGES.reshape(6, -1)}, r"type uint8 .* or \[6, \.\.\.\] of floats"),
        ({"images": np.full((6, 2), 2**31)}, "of integers of 32 bits"),
        ({"images": IMAGES.astype(int), "mean": 0.5}, r"mean=\[0.5\], std=\[1.0\]: integers are token ids"),
    ],
)
def test_refusals(changes, message):
    arguments = {"images": IMAGES, "labels": LABELS, "rows_per_client": rows([0]), "num_classes": 3} | changes
    with pytest.raises(ValueError, match=message):
        federate(**arguments)


@pytest.mark.parametrize("shape", [(3, 4, 3), (1, 8, 9), (1, 1, 20), (1, 28, 1), (3, 3, 3), (5, 8, 8)])
def test_arrays_that_may_be_something_else_than_images_with_channels_first_are_taken(shape):
    assert federate(np.zeros((6, *shape)), LABELS, rows([0]), 3).images.shape[1:] == shape


def test_small_numbers_vary_and_equal_ones_do_not():
    features = np.array([[1e-8, 0.1], [3e-8, 0.1], [5e-8, 0.1]], np.float32)
    federation = federate(Dataset(features, LABELS[:3], features, LABELS[:3], NAMES), rows([0, 1, 2]))
    np.testing.assert_allclose(federation.std, [features[:, 0].std(), 1], rtol=FORMULA)


def test_vectors_have_constants_of_each_feature_and_ids_have_none():
    features = rng().normal([1.0, -2.0], [1.0, 3.0], (6, 2))
    vectors = federate(Dataset(features, LABELS, features, LABELS, NAMES), rows([0, 1]))
    assert vectors.images.dtype == np.float32
    np.testing.assert_allclose(vectors.mean, features.mean(0), rtol=FORMULA)
    np.testing.assert_allclose(vectors.std, features.std(0), rtol=FORMULA)
    ids = rng().integers(0, 2**31 - 1, (6, 7))
    tokens = federate(Dataset(ids, LABELS, ids, LABELS, NAMES), rows([0, 1]))
    assert tokens.images.dtype == np.int32 and tokens.images.tolist() == ids.tolist()
    assert (tokens.mean.tolist(), tokens.std.tolist()) == ([0], [1])
    for federation in (vectors, tokens):
        batch = gather(jax.tree.map(jnp.asarray, federation), jnp.array([1, 0]), jnp.ones(2, bool))
        stored = federation.images[federation.rows[[1, 0]]]
        assert batch.images.dtype == stored.dtype
        np.testing.assert_allclose(batch.images, (stored - federation.mean) / federation.std, rtol=SUM)
