"""Partitions that are given: by a file, or by the owners of rows."""

import json
import pickle

import numpy as np
import pytest
import yaml

from fedjax_bal.config import load_config, resolved_yaml
from fedjax_bal.data import DataError, partition
from fedjax_bal.lab.splits import split_rows
from fedjax_bal.types import Dataset

LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 0])


ROWS = [[6, 1, 3], [], [0, 1]]


def read(path, clients=3, **options):
    found = partition.file(np.random.default_rng(0), LABELS, clients, path, **options)
    assert all(own.dtype == np.int64 for own in found)
    return [own.tolist() for own in found]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        json.dumps({"2": ROWS[2], "0": ROWS[0], "1": ROWS[1]}),
        repr(dict(enumerate(ROWS))),  # as published with FedACG
        str({"0": ROWS[0], "1": ROWS[1], "2": ROWS[2]}),
        "{0: [6, 1, 3], 1: [], 2: {0, 1}}",
        "[[ 6  1\n 3]\n []\n [0 1]]",
        "\ufeff6 1 3\n\n0,1\n",
        "6, 1,\t3\r\n\r\n0 1",
        "6 1 3\n\n0 1\n\n \n",
        repr([np.array(own, np.int64) for own in ROWS]),
        repr({client: np.array(own, np.int32) for client, own in enumerate(ROWS)}),
        str([list(map(np.int64, own)) for own in ROWS]),
        "{np.int64(0): [np.uint8(6), np.uint8(1), 3], np.int64(1): set(), np.int64(2): {np.uint8(0), np.uint8(1)}}",
        "{0: np.array([6, 1,\n       3]), 1: set(), 2: numpy.array([0, 1], dtype=int16)}",
    ],
)
def test_row_numbers_in_text(tmp_path, text):
    (tmp_path / "clients.txt").write_text(text)
    assert read(tmp_path / "clients.txt") == ROWS


def published(lists):
    """A pickle as FedMuon's code writes it, with NumPy before 2.0: numbers that clients share are there once."""
    written = pickle.dumps(lists, protocol=4)
    old, new = (bytes([0x8C, len(name)]) + name for name in (b"numpy.core.multiarray", b"numpy._core.multiarray"))
    assert written.count(new) == 1
    return written[:2] + written[11:].replace(new, old)  # without the frame, which has a length


def test_row_numbers_in_a_pickle(tmp_path):
    shared = np.int64(6)
    lists = [[shared, np.int64(1), np.int64(3), shared], [], [np.int64(0), shared]]
    for content in (published(lists), pickle.dumps(lists, protocol=3), pickle.dumps(dict(enumerate(lists)))):
        (tmp_path / "num_workers_3-data_CIFAR100").write_bytes(content)
        assert read(tmp_path / "num_workers_3-data_CIFAR100") == [[6, 1, 3], [], [0, 6]]  # and 6 once for each
    (tmp_path / "clients.data").write_bytes(pickle.dumps([[np.array(2, ">i2")[()], np.uint8(7)], [np.int16(5)]]))
    assert read(tmp_path / "clients.data", 2) == [[2, 7], [5]]


def test_a_pickle_that_names_anything_else_is_refused(tmp_path):
    called = []

    class Code:
        def __reduce__(self):
            return called.append, (1,)

    for content, named in ((Code(), "builtins.getattr"), ([np.arange(2)], "_reconstruct"), ([[np.float64(1)]], "f8")):
        (tmp_path / "clients.data").write_bytes(pickle.dumps(content))
        with pytest.raises(DataError, match=named):
            read(tmp_path / "clients.data", 1)
    assert not called


def test_row_numbers_in_arrays(tmp_path):
    many = [np.array([place % 8], np.uint16) for place in range(12)]
    np.savez(tmp_path / "rows.npz", *many)
    assert read(tmp_path / "rows.npz", 12) == [own.tolist() for own in many]
    np.savez_compressed(tmp_path / "even.npz", clients=np.array([[1, 2], [0, 5]]))
    assert read(tmp_path / "even.npz", 2) == [[1, 2], [0, 5]]


@pytest.mark.parametrize(
    "text",
    [
        "2 0 1\n1,1,0",
        "[[2, 0, 1], [1, 1]]",
        str(np.array([[2, 0, 1], [1, 1, 0]])),
        "{0: {0: 2, 2: 1}, 1: {1: 1, 0: 1}}",
        "{0: [2, 0, 1, 0], 1: [1, 1]}",
    ],
)
def test_counts_are_drawn_from_each_class(tmp_path, text):
    (tmp_path / "counts.csv").write_text(text)
    found = read(tmp_path / "counts.csv", 2, holds="counts")
    assert [np.bincount(LABELS[own], minlength=3).tolist() for own in found] == [[2, 0, 1], [1, 1, 0]]
    assert len({row for own in found for row in own}) == 5
    draws = {str(partition.file(np.random.default_rng(seed), LABELS, 2, tmp_path / "counts.csv", "counts"))
             for seed in range(9)}  # fmt: skip
    assert len(draws) > 1


@pytest.mark.parametrize(
    ("class_names", "text"),
    [
        (("cat", "dog", "2nd cat"), '[{"2nd cat": 1, "cat": 2, "dog": 0}, {"cat": 1, "dog": 1}]'),
        (("cat", "dog", "2nd cat"), '[{"2": 1, "0": 2}, {"0": 1, "dog": 1, "7": 0}]'),
        (("1", "2", "3"), '[{"3": 1, "1": 2}, {"1": 1, "2": 1}]'),  # not the classes 3, 1 and 2
        (("2", "0", "1"), '[{"1": 1, "2": 2}, {"2": 1, "0": 1}]'),
        (("1.0", "2.0", "3.0"), '[{"3.0": 1, "1.0": 2}, {"1.0": 1, "2.0": 1}]'),
    ],
)
def test_classes_of_a_file_are_found_by_name(tmp_path, class_names, text):
    (tmp_path / "counts.json").write_text(text)
    given = partition.from_dataset(partition.file, Dataset(None, LABELS, None, None, class_names), np.arange(8))
    options = {"file": tmp_path / "counts.json", "holds": "counts"}
    found = partition.draw(LABELS, "file", 2, 0, options, given=given)
    assert [np.bincount(LABELS[own], minlength=3).tolist() for own in found] == [[2, 0, 1], [1, 1, 0]]
    (tmp_path / "counts.json").write_text('[{"dgo": 1}, {}]')
    with pytest.raises(DataError, match=f"client 0 lists class 'dgo'; the classes are {', '.join(class_names)}"):
        partition.draw(LABELS, "file", 2, 0, options, given=given)


@pytest.mark.parametrize(
    ("class_names", "text", "message"),
    [
        (("1.0", "2.0", "3.0"), '[{"1": 1}, {}]', "client 0 lists class '1'; the classes are 1.0, 2.0, 3.0"),
        (("cat", "dog", "cow"), '[{"cat": 1, "0": 2}, {}]', "client 0 lists a class twice"),
    ],
)
def test_a_key_that_may_mean_two_classes_is_refused(tmp_path, class_names, text, message):
    (tmp_path / "counts.json").write_text(text)
    with pytest.raises(DataError, match=message):
        partition.file(np.random.default_rng(0), LABELS, 2, tmp_path / "counts.json", "counts", class_names=class_names)


SHARES = [[0.5, 0.25, 0.25], [0, 1e-1, 0.9]]


@pytest.mark.parametrize(
    "text", ["0.5 0.25 0.25\n0,1e-1,0.9", json.dumps(SHARES), '[{"0": 5e-1, "1": 0.25, "2": 0.25}, [0, 0.1, 0.9]]']
)
def test_shares_in_a_file_are_those_of_a_table(tmp_path, text):
    (tmp_path / "shares.txt").write_text(text)
    labels = np.repeat([0, 1, 2], [30, 30, 23])
    parts = partition.file(np.random.default_rng(0), labels, 2, tmp_path / "shares.txt", "shares")
    table = partition.class_table(np.random.default_rng(0), labels, 2, SHARES, "shares")
    assert [own.tolist() for own in parts] == [own.tolist() for own in table]
    # 23 rows of class 2 are 1.15 shares: 20 rows for a share of 1.
    assert [np.bincount(labels[own], minlength=3).tolist() for own in parts] == [[10, 5, 5], [0, 2, 18]]


def test_shares_that_are_no_numbers_have_a_message(tmp_path):
    for text, message in (
        ("[[NaN]]", "not a partition|client 0 lists share nan"),
        ("-0.5 1", "client 0 lists share -0.5"),
    ):
        (tmp_path / "shares.txt").write_text(text)
        with pytest.raises(DataError, match=message):
            partition.file(np.random.default_rng(0), LABELS, 1, tmp_path / "shares.txt", "shares")


def test_a_table_of_counts_is_dealt_exactly_and_at_random():
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], 40))
    table = [[3, 0, 20], [17, 40, 0], [0, 0, 0]]
    parts = [partition.class_table(np.random.default_rng(seed), labels, 3, table) for seed in range(400)]
    assert all([np.bincount(labels[own], minlength=3).tolist() for own in drawn] == table for drawn in parts)
    taken = np.bincount(np.concatenate([drawn[0] for drawn in parts]), minlength=120)[labels == 2] / 400
    np.testing.assert_allclose(taken, 0.5, atol=5 * 0.5 / 20)


def test_a_table_of_probabilities_makes_clients_of_equal_size_by_these_laws():
    rng = np.random.default_rng(0)
    laws, labels = rng.dirichlet(np.ones(5), 30), np.repeat(np.arange(5), 20_000)
    parts = partition.class_table(rng, labels, 30, laws, "shares")
    counts = np.array([np.bincount(labels[own], minlength=5) for own in parts])
    each = 20_000 / laws.sum(0).max()  # rows of a client, when the class that is asked for most runs out
    np.testing.assert_allclose(counts, each * laws, atol=1.001)
    assert counts.sum(0).max() == 20_000
    # Any multiple of the table is the same partition.
    again = partition.class_table(np.random.default_rng(3), labels, 30, 8 * laws, "shares")
    first = partition.class_table(np.random.default_rng(3), labels, 30, laws, "shares")
    assert all((one == other).all() for one, other in zip(again, first, strict=True))


@pytest.mark.parametrize(
    ("table", "holds", "message"),
    [
        ([[1, 1]], "counts", "table has 1 rows for 2 clients"),
        ([[1, 1], [1]], "counts", "table has rows of 1 to 2 numbers"),
        ([[5, 0, 0], [0, 1, 0]], "counts", "clients have 5 rows of class 0, but there are 4"),
        ([[1, 0.5], [1, 1]], "counts", "client 0 has 0.5 rows of class 1"),
        ([[0, 0, 0, 1], [0, 1, 0, 0]], "shares", "share of class 3"),
        ([[0, 0], [0, 0]], "shares", "holds only zeros"),
        ([[0, -1], [0, 0]], "counts", "table: received .*, each item a list"),
    ],
)
def test_tables_that_can_not_be_dealt(table, holds, message):
    with pytest.raises(ValueError, match=message):
        partition.class_table(np.random.default_rng(0), LABELS, 2, table, holds)


def test_a_configuration_has_a_table():
    overrides = [
        "partition={scheme: class_table, clients: 2, table: [[1, 2], [3, 0]]}",
        "selection.clients_per_round=2",
    ]
    config = load_config("absent_clients", overrides)
    assert config.partition.parameters["table"] == ((1, 2), (3, 0))
    again = yaml.safe_load(resolved_yaml(config))
    assert again["partition"]["table"] == [[1, 2], [3, 0]] and again["partition"]["holds"] == "counts"


def test_row_numbers_are_those_of_the_data_set_also_where_rows_are_held_out(tmp_path):
    (tmp_path / "clients.txt").write_text("6 1 3\n\n0 1")
    numbers = np.array([1, 3, 4, 6])
    found = partition.file(np.random.default_rng(0), LABELS[numbers], 3, tmp_path / "clients.txt", "rows", numbers, 8)
    assert [numbers[own].tolist() for own in found] == [[6, 1, 3], [], [1]]
    given = partition.from_dataset(partition.file, Dataset(None, LABELS, None, None, ("a",)), numbers)
    wanted = (LABELS[numbers], "file", 3, 0, {"file": tmp_path / "clients.txt"})
    assert [own.tolist() for own in partition.draw(*wanted, given=given)] == [own.tolist() for own in found]
    tailed = partition.draw(*wanted, imbalance_factor=2, given=given)
    listed, kept = [6, 1, 3, 1], np.concatenate(tailed)
    assert 0 < len(kept) < 4 and set(numbers[kept].tolist()) <= set(listed)


def test_row_numbers_of_data_in_another_order_are_refused(tmp_path):
    (tmp_path / "clients.txt").write_text("1 0\n\n2")
    shuffled = Dataset(None, LABELS, None, None, ("a",), official_order=False)
    given = partition.from_dataset(partition.file, shuffled, np.arange(8))
    wanted = (LABELS, "file", 3, 0, {"file": tmp_path / "clients.txt"})
    with pytest.raises(ValueError, match=r"clients.txt holds row numbers, .* TensorFlow Datasets, .*--data-dir"):
        partition.draw(*wanted, given=given)
    counts = partition.draw(*wanted[:-1], wanted[-1] | {"holds": "counts"}, given=given)
    assert [len(own) for own in counts] == [1, 0, 2]


def test_a_configuration_reads_it_beside_the_configuration(tmp_path, monkeypatch):
    dataset = Dataset(np.zeros((8, 2, 2, 1), np.uint8), LABELS, None, LABELS, ("a", "b", "c"))
    (tmp_path / "clients.txt").write_text("6 1 3\n5\n0 1\n")
    monkeypatch.chdir(tmp_path)
    overrides = ["partition={scheme: file, file: clients.txt, clients: 3, seed: 0}", "selection.clients_per_round=2"]
    config = load_config("absent_clients", overrides).methods[0]
    assert config.partition.parameters["file"] == str(tmp_path / "clients.txt")
    _, rows, _ = split_rows(dataset, config)
    assert [own.tolist() for own in rows] == [[6, 1, 3], [5], [0, 1]]


WRONG = {
    "another number": ("1\n2\n", "has 2 clients, but 3 are asked for; ask for 2"),
    "a row too many": ("1\n8\n2", "client 1 lists row 8, not from 0 to 7"),
    "fractions": ("[[1], [2.5], [0]]", "client 1 has no list of integers"),
    "huge": ("1\n2\n" + "9" * 40, "client 2 has no list"),
    "words": ("client,rows\n0,1\n1,2", "is not a partition .*expected a list for each client as JSON, a line"),
    "a gap": ("{0: [1], 1: [2], 3: [0]}", "clients aren't numbered from 0 without a gap"),
    "names": ('{"a": [1], "b": [], "c": []}', "a list nor a mapping of numbers of clients"),
    "deep": ("[" * 100_000, "is not a partition"),
    "nothing": ("", "is not a partition .empty"),
    "code": ("[__import__('os').system('exit 1')]", "is not a partition"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_partition_has_a_message(tmp_path, kind):
    text, message = WRONG[kind]
    (tmp_path / "clients.txt").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / "clients.txt")
    assert str(caught.value).startswith(f"{tmp_path / 'clients.txt'}: ") and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3 1 0\n2 0 0", "clients have 5 rows of class 0, but there are 4 to draw from"),
        ("0 0 0 1\n1", "client 0 lists class 3, not from 0 to 2"),
        ('[{"1000000000000": 1}, []]', "client 0 lists class '1000000000000'; the classes are 0 to 2"),
        ('[[], {"cat": 1}]', "client 1 lists class 'cat'; the classes are 0 to 2"),
        ('[{"0": [1]}, []]', "client 0 has no list"),
        ("-1\n1", "client 0 lists count -1"),
    ],
)
def test_counts_that_can_not_be_drawn(tmp_path, text, message):
    (tmp_path / "counts.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "counts.csv", 2, holds="counts")


def test_files_that_are_none(tmp_path):
    with pytest.raises(DataError, match=r"no\.txt: can't be read \(No such file"):
        read(tmp_path / "no.txt")
    with pytest.raises(DataError, match="is a directory"):
        read(tmp_path)
    (tmp_path / "rows.npz").write_bytes(pickle.dumps(ROWS))
    with pytest.raises(DataError, match="never opened"):
        read(tmp_path / "rows.npz")
    np.savez(tmp_path / "rows.npz", np.array([[1], None], object))
    with pytest.raises(DataError, match="never opened"):
        read(tmp_path / "rows.npz")
    np.savez(tmp_path / "rows.npz", a=np.arange(3), b=np.arange(2))
    with pytest.raises(DataError, match="the array 'a' has no client's number"):
        read(tmp_path / "rows.npz")
    np.savez(tmp_path / "rows.npz", client_0=[1], client_1=[2], rest=[0, 3])
    with pytest.raises(DataError, match="the array 'rest' has no client's number"):
        read(tmp_path / "rows.npz", 2)
    (tmp_path / "rows.json").write_text('{"0": [1], "0": [2], "1": [3]}')
    with pytest.raises(DataError, match="has the key '0' twice"):
        read(tmp_path / "rows.json", 2)
    (tmp_path / "clients.txt").write_bytes(b"1\xff")
    with pytest.raises(DataError, match="is not a partition"):
        read(tmp_path / "clients.txt")
    np.savez(tmp_path / "rows.npz", train_0=[0, 1], train_1=[2], test_0=[3], test_1=[4])
    with pytest.raises(DataError, match="two arrays have the same number"):
        read(tmp_path / "rows.npz", 2)


OWNERS = np.array([8, 2, 8, 5, 2, 8, 9, 5])


NO_CLASSES = np.zeros(8, int)


def draw(clients, seed=0, owners=OWNERS, **options):
    found = partition.natural(np.random.default_rng(seed), NO_CLASSES, clients, owners, **options)
    return [rows.tolist() for rows in found]


def test_every_owner_is_a_client_whatever_the_seed():
    everybody = [[1, 4], [3, 7], [0, 2, 5], [6]]
    for seed in range(5):
        for choose in ("random", "largest"):
            assert draw(4, seed, choose=choose) == everybody


def test_the_largest_come_first_and_ties_go_to_the_lower_number():
    assert draw(1, choose="largest") == [[0, 2, 5]]
    assert draw(2, choose="largest") == [[1, 4], [0, 2, 5]]
    assert draw(3, choose="largest") == [[1, 4], [3, 7], [0, 2, 5]]


def test_owners_are_drawn_evenly_by_the_seed():
    assert draw(2, seed=3) == draw(2, seed=3)
    counts = np.zeros(10)
    for seed in range(400):
        for rows in draw(2, seed):
            counts[OWNERS[rows[0]]] += 1
    assert np.flatnonzero(counts).tolist() == [2, 5, 8, 9]
    assert np.abs(counts[[2, 5, 8, 9]] - 200).max() < 4 * np.sqrt(400 * 0.25)


def test_small_owners_can_be_left_out():
    assert draw(3, min_size=2) == [[1, 4], [3, 7], [0, 2, 5]]
    assert draw(1, min_size=3) == [[0, 2, 5]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 5}, "5 clients, but 4 writers or users have rows"),
        ({"clients": 2, "min_size": 3}, "2 clients, but 1 writers or users have at least 3 rows"),
        ({"clients": 2, "owners": None}, "natural needs a data set that says whose its images are"),
        ({"clients": 2, "owners": OWNERS[:3]}, r"owners has shape \(3,\)"),
        ({"clients": 2, "owners": OWNERS / 2}, "float64"),
    ],
)
def test_what_has_no_solution_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        draw(**options)


def test_only_the_rows_that_are_partitioned_count():
    dataset = Dataset(None, NO_CLASSES, None, None, ("a",), OWNERS)
    rows = np.array([0, 3, 7, 6])
    given = partition.from_dataset(partition.SCHEMES["natural"], dataset, rows)
    own = partition.SCHEMES["natural"](np.random.default_rng(0), NO_CLASSES[rows], 3, **given)
    assert [rows[numbers].tolist() for numbers in own] == [[3, 7], [0], [6]]
    nobody = dataset._replace(train_clients=None)
    assert partition.from_dataset(partition.SCHEMES["natural"], nobody, rows) == {"owners": None}
    others = set(partition.SCHEMES) - {"natural", "file"}
    assert all(partition.from_dataset(partition.SCHEMES[name], dataset, rows) == {} for name in others)
