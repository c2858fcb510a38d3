import numpy as np
import pytest

from fedjax_bal.data import partition
from fedjax_bal.types import Dataset

OWNERS = np.array([8, 2, 8, 5, 2, 8, 9, 5])
LABELS = np.zeros(8, int)


def draw(clients, seed=0, owners=OWNERS, **options):
    found = partition.natural(np.random.default_rng(seed), LABELS, clients, owners, **options)
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
        ({"clients": 0}, "num_clients: received 0"),
        ({"clients": 2, "min_size": 0}, "min_size: received 0"),
        ({"clients": 2, "choose": "smallest"}, "choose: received 'smallest'"),
        ({"clients": 2, "owners": None}, "natural needs a data set that says whose its images are"),
        ({"clients": 2, "owners": OWNERS[:3]}, r"owners has shape \(3,\) .*; expected 8 integers"),
        ({"clients": 2, "owners": OWNERS / 2}, "float64; expected 8 integers"),
    ],
)
def test_what_has_no_solution_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        draw(**options)


def test_only_the_rows_that_are_partitioned_count():
    dataset = Dataset(None, LABELS, None, None, ("a",), OWNERS)
    rows = np.array([0, 3, 7, 6])
    given = partition.from_dataset(partition.SCHEMES["natural"], dataset, rows)
    own = partition.SCHEMES["natural"](np.random.default_rng(0), LABELS[rows], 3, **given)
    assert [rows[numbers].tolist() for numbers in own] == [[3, 7], [0], [6]]
    nobody = dataset._replace(train_clients=None)
    assert partition.from_dataset(partition.SCHEMES["natural"], nobody, rows) == {"owners": None}
    others = set(partition.SCHEMES) - {"natural", "file"}
    assert all(partition.from_dataset(partition.SCHEMES[name], dataset, rows) == {} for name in others)
