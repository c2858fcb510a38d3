"""CSV files; what becomes of their columns is in ../test_table.py."""

import gzip

import numpy as np
import pytest
from data.conftest import most_memory

from fedjax_bal.data import DataError, load, memory


@pytest.fixture
def read(tmp_path):
    """Reads a file's content with the column `y` as its label, and half of it held out."""

    def from_text(text, **options):
        content = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "mine.csv").write_bytes(content)
        return load("csv", path=tmp_path / "mine.csv", **{"label": "y", "test": 0.5} | options)

    return from_text


def test_quotes_blank_lines_spaces_and_line_ends(read):
    text = '\ufeffa , y\r\n"1", "a ""b"", or\nc"\r\n\r\n2,"a ""b"", or\nc"\r\n 3 , z\r\n4,z \r\n'
    dataset = read(text)
    assert dataset.class_names == ('a "b", or\nc', "z")
    assert sorted([*dataset.train_images.ravel(), *dataset.test_images.ravel()]) == [1, 2, 3, 4]


def test_texts_that_are_integers_are_in_their_order_unless_they_would_change(read, tmp_path):
    rows = "1,9,007\n2,9,7\n3,10,007\n4,10,7\n"
    dataset = read(f"a,y,u\n{rows}", clients="u", test=0.01)
    assert dataset.class_names == ("9", "10")
    users = load("csv", path=tmp_path / "mine.csv", label="u", inputs=["a"], test=0.01)
    assert users.class_names == ("007", "7")


def test_other_delimiters(read):
    assert read("a;y\n1;x\n2;x\n3;z\n4;z\n", delimiter=";").class_names == ("x", "z")
    assert read("a\ty\n1\tx\n2\tx\n3\tz\n4\tz\n", delimiter="\t").class_names == ("x", "z")


WRONG = {
    "empty": ("", "is empty"),
    "no label": ("a,b\n1,x\n", "has no column 'y', but a, b"),
    "a name twice": ("a,y,a\n1,x,2\n", "names column 'a' twice"),
    "a column without a name": (",a,y\n0,1,x\n", "column 1 has no name, as pandas writes its index"),
    "another delimiter": ("a;y\n1;x\n", "has one column, 'a;y': give its delimiter"),
    "a long line": ("a,y\n1,x\n2,x,3\n", "line 3 has 3 values for 2 columns"),
    "a short line": ('a,y\n1,"x\nx"\n2\n', "line 4 has 1 values for 2 columns"),
    "an open quote": ('a,y\n1,"x\n2,x\n', "line 3: unexpected end of data"),
    "texts": ("a,y\n1,x\n2,x\noops,z\n", "column 'a' holds 'oops' in line 4, and inputs are numbers"),
    "gaps": ("a,y\n1,x\nNA,x\n\n,z\n?,z\n", "column 'a' has 3 missing values in 4 rows, the first in line 3"),
    "too large": ("a,y\n1,x\n2,x\n1e39,z\n", r"column 'a' holds 1e\+39 in line 4"),
    "an underscore": ("a,y\n1,x\n1_000,x\n", "column 'a' holds '1_000' in line 3.*thousands='_'"),
    "other digits": ("a,y\n1,x\n\u0663,x\n", "column 'a' holds '\u0663' in line 3, and inputs are numbers"),
    "no utf-8": (b"a,y\n1,\xff\n", r"isn't in UTF-8 \(.* at byte 0xff\): save it as UTF-8, or"),
    "utf-16 without a mark": ("a,y\n1,x\n".encode("utf-16-be"), "isn't in UTF-8, but in UTF-16 or UTF-32"),
    "compressed": (gzip.compress(b"a,y\n1,x\n"), "is compressed: unpack it"),
    "a comma of either kind": ('a,y\n1,x\n"1,100",x\n', "column 'a' holds '1,100' in .*thousands=',' if .*decimal=','"),
    "thousands and decimals": (
        'a,y\n1,x\n"1,100.5",x\n',
        "column 'a' holds '1,100.5' in .*pandas.read_csv, thousands=',', and",
    ),
    "spaces for thousands": (
        'a,y\n1,x\n"1 100,5",x\n',
        "column 'a' holds '1 100,5' in .*thousands=' ', decimal=',', and",
    ),
    "a long name": (f"a,y\n1,x\n2,{'x' * 300}\n", "line 3: column 'y' has a text of 300 characters"),
    "a measurement as label": (
        "a,y\n1,2\n2,nan\n3, 0.5\n4,1.0\n",
        "column 'y' holds 0.5 in line 4; expected texts or int",
    ),
    "a huge field": (f"a,y\n1,{'x' * 200_000}\n", "line 2: field larger than"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_does_not_fit_is_named_with_its_line(read, kind):
    text, message = WRONG[kind]
    with pytest.raises(DataError, match=f"mine.csv: {message}"):
        read(text)


def test_clients_are_no_measurements_but_may_be_written_as_floats(read):
    assert read("a,y,u\n1,x,1.0\n2,x,2.0\n3,z,1.0\n4,z,2.0\n", clients="u").client_names == ("1", "2")
    assert read("a,y,u\n1,x,1.0\n2,x,v2.5\n3,z,1.0\n4,z,v2.5\n", clients="u").client_names == ("1.0", "v2.5")
    with pytest.raises(DataError, match="column 'u' holds 2.5 in line 3; .* the name of a client"):
        read("a,y,u\n1,x,1.0\n2,x,2.5\n3,z,1.0\n4,z,2.0\n", clients="u")


def test_a_column_of_clients_may_be_an_input_too(read):
    dataset = read("a,y,u\n1,x,7\n2,z,7\n3,x,9\n4,z,9\n", clients="u", inputs=["u", "a"], test=0.5)
    assert dataset.client_names == ("7", "9") and dataset.input_names == ("u", "a")
    assert sorted(dataset.train_images[:, 0].tolist() + dataset.test_images[:, 0].tolist()) == [7, 7, 9, 9]


def test_lines_are_counted_over_blocks(read):
    rows = "".join(f"{row},{row % 2}\n" for row in range(10_000))
    dataset = read(f"a,y\n{rows}", test=0.2, inputs=["a"])
    assert (dataset.train_images[:, 0] % 2 == dataset.train_labels).all() and len(dataset.train_labels) == 8000
    with pytest.raises(DataError, match="column 'a' holds 'b' in line 10002"):
        read(f"a,y\n{rows}b,0\n")


def test_a_column_with_another_integer_in_each_row_is_an_input_only_if_it_is_listed(read):
    rows = "".join(f"{row},{row},{row % 2}\n" for row in range(120))
    with pytest.raises(DataError, match="column 'record' has another integer in each of 120 rows"):
        read(f"record,b,y\n{rows}", test=0.2)
    assert read(f"record,b,y\n{rows}", test=0.2, inputs=["b"]).input_names == ("b",)
    for first in (16_777_300, 4_532_000_000_000, 4_532_000_000_000_000_001):  # 32 bits, and 64, merge some of them
        rows = "".join(f"{first + row},{row % 2}\n" for row in range(10_000))
        with pytest.raises(DataError, match=r"column 'record' has another integer in each of 10,000 rows"):
            read(f"record,y\n{rows}", test=0.2)
        assert read(f"record,y\n{rows}", test=0.2, inputs=["record"]).train_images.dtype == np.float32
    floats = "".join(f"{row / 4},{row % 2}\n" for row in range(120))
    assert read(f"a,y\n{floats}").input_names == ("a",)


def test_memory_and_options(read, tmp_path, monkeypatch):
    text = "a,y\n1,x\n2,x\n3,z\n4,z\n"
    for options, message in (
        ({"delimiter": ";;"}, "delimiter: received ';;', must be one character"),
        ({"test": 2}, "test: received 2, must be .* below 1, or the path of a file"),
        ({"label": 3}, "label: received 3, must be text"),
        ({"test": "no.csv"}, f"{tmp_path}/no.csv: can't be read"),
    ):
        with pytest.raises(ValueError, match=message):
            read(text, **options)
    with pytest.raises(ValueError, match="data set csv needs label, as in load"):
        load("csv", path=tmp_path / "mine.csv")
    wide = "a,y\n" + "1,x\n" * 5000 + f"2,{'z' * 250}\n" * 2
    read(wide)  # what it imports isn't counted
    with most_memory(2**25):
        read(wide)
    monkeypatch.setattr(memory, "available_bytes", lambda: 100)
    with pytest.raises(DataError, match="mine.csv: its table needs .* GiB"):
        read(text)


def test_the_same_rows_as_an_array_of_numpy(read):
    numbers = np.random.default_rng(0).normal(size=(50, 3))
    rows = "".join(f"{','.join(map(repr, row))},{number % 2}\n" for number, row in enumerate(numbers.tolist()))
    dataset = read(f"a,b,c,y\n{rows}", test=0.2)
    rows_of = [np.flatnonzero((numbers.astype(np.float32) == row).all(1)).item() for row in dataset.train_images]
    assert [row % 2 for row in rows_of] == dataset.train_labels.tolist()
