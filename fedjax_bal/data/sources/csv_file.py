"""The user's own tables in CSV files: a header with the names of columns, and a row of numbers and texts in each line.

Quoted fields may contain commas and line breaks (RFC 4180). A file is read in blocks of lines, so that the text of only
a few is in memory at a time.
"""

import csv
import io
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fedjax_bal.annotations import ProperShare, Seed, Text, checked
from fedjax_bal.data.arrays import MISSING, TEST_SHARE, TestBy
from fedjax_bal.data.inputs import rounding_matters
from fedjax_bal.data.memory import check_memory
from fedjax_bal.data.reading import reading
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.data.table import (
    InputTable,
    check_categories,
    input_names,
    not_a_name,
    not_a_number,
    table_dataset,
    text_columns,
)
from fedjax_bal.files import open_file
from fedjax_bal.types import Dataset

_WIDE = (b"\xff\xfe", b"\xfe\xff")  # the marks of UTF-16 and UTF-32
_OTHER_ENCODING = (
    "save it as UTF-8, or read it with pandas.read_csv(..., encoding='{}'), for instance, and use from_pandas"
)
_BLOCK = 2**12  # lines that are converted at a time
_COMPRESSED = (b"\x1f\x8b", b"PK\3\4", b"BZh", b"\xfd7zX", b"\x28\xb5\x2f\xfd")  # gzip, zip, bzip2, xz, zstd
_TRUTH = {"false": 0.0, "true": 1.0}
_MAX_NAME = 256  # characters: an array of texts has as many for each of them as the longest has
# For each byte of a file: "0," becomes a number of four bytes, which is copied, and a text has four for each character.
_BYTES_IN_MEMORY = 8
_REMEDY = "expected a CSV file in UTF-8 with the names of its columns in the first line."


@checked
def read_csv(
    path: str | os.PathLike,
    label: Text,
    clients: Text | None = None,
    inputs: Sequence[Text] | None = None,
    test: ProperShare | str | os.PathLike = TEST_SHARE,
    test_seed: Seed = 0,
    delimiter: Text = ",",
    test_by: TestBy = "classes",
    categories: Sequence[Text] | None = None,
) -> Dataset:
    r"""Reads a data set from a table.

    Args:
        path: the file; its first line names the columns.
        label: the column of the classes, texts or integers.
        clients: the column of users, for a natural partition.
        inputs: the columns of inputs, numbers or `categories`; by default all other columns.
        test: the share of each class that becomes the test set; or another file, whose columns are taken by name. A
            class that only it has is refused; its users are known if it has the column `clients`, too. A relative path
            starts at the folder of `path`.
        test_seed: the seed of that split.
        delimiter: the character between fields: `;` or `"\t"`, for instance.
        test_by: "clients" holds out a share of the users instead, with all their rows, so that none is in both parts.
        categories: the columns of inputs whose values are texts, or integers that stand for something. Each value
            becomes an input, such as `sex=F`, which is 1 in the rows that have this value and 0 in the others.

    Returns:
        The data set: vectors `Float32[D, F]`, in the order of the columns, and the classes in sorted order.

    Raises:
        DataError: the file can't be read, a column doesn't exist, or a value is missing or no number; the message has
            its line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "pets.csv")
        ...     _ = file.write_text("weight,owner,kind\n4.1,Ann,cat\n3.9,Bo,cat\n9,Ann,dog\n11,Bo,dog\n")
        ...     dataset = read_csv(file, label="kind", clients="owner", test=0.5)
        >>> dataset.class_names, dataset.train_images.shape, dataset.test_labels
        (('cat', 'dog'), (2, 1), array([0, 1], dtype=int32))
    """
    if len(delimiter) != 1:
        raise ValueError(f"delimiter: received {delimiter!r}, must be one character")
    file = Path(path)
    table = _read_table(file, label, clients, inputs, delimiter, categories or ())
    if isinstance(test, int | float):
        return table_dataset(table, test, label, clients, inputs, test_seed, test_by, categories)
    names = [name for name in table.columns if name not in (label, clients)]
    tested = _read_table(file.parent / test, label, clients, names, delimiter, categories or (), is_test=True)
    return table_dataset(table, tested, label, clients, inputs, test_seed, test_by, categories)


def _read_table(
    path: Path,
    label: str,
    clients: str | None,
    inputs: Sequence[str] | None,
    delimiter: str,
    categories: Sequence[str],
    is_test: bool = False,
) -> InputTable:
    """Reads the columns that are used: numbers, and the texts of labels, categories and clients.

    A test file may lack the column of clients.
    """
    with (
        reading(path, _REMEDY),
        open_file(path) as stream,
        io.TextIOWrapper(stream, "utf-8-sig", newline="") as text,
    ):
        start = stream.read(4)
        if start.startswith(_COMPRESSED):
            raise ValueError("is compressed: unpack it")
        if start.startswith(_WIDE) or b"\0" in start:
            raise ValueError(f"isn't in UTF-8, but in UTF-16 or UTF-32: {_OTHER_ENCODING.format('utf-16')}")
        stream.seek(0)
        size = os.fstat(stream.fileno()).st_size
        check_memory(f"{path}: its table needs", _BYTES_IN_MEMORY * size)
        rows = _rows(text, delimiter)
        _, header = next(rows, (0, []))
        if not header:
            raise ValueError("is empty")
        header = [name.strip() for name in header]
        repeated = {name for name in header if name and header.count(name) > 1}
        if repeated:
            raise ValueError(f"names column {min(repeated)!r} twice")
        if len(header) == 1 and any(sign in header[0] for sign in ";\t|"):
            raise ValueError(f"has one column, {header[0]!r:.80}: give its delimiter, delimiter=';' for instance")
        if is_test and clients not in header:
            clients = None
        names = input_names(str(path), header, label, clients, inputs)
        categories = check_categories(str(path), header, names, categories)
        keys = {label, *([] if clients is None else [clients]), *categories}
        names = [name for name in names if name not in categories]
        places = [header.index(name) for name in names]
        lines = [np.zeros(0, np.int64)]
        blocks: dict[str, list[np.ndarray]] = {name: [] for name in (*names, *keys)}
        while block := list(itertools.islice(rows, _BLOCK)):
            for line, row in block:
                if len(row) != len(header):
                    raise ValueError(f"line {line} has {len(row)} values for {len(header)} columns")
            lines.append(np.array([line for line, _ in block]))
            for name, column in zip(names, _numbers(str(path), block, names, places), strict=True):
                blocks[name].append(column)
            for name in keys.difference(names):  # of clients whose number is an input, the numbers serve as names
                blocks[name].append(_texts(block, name, header.index(name)))
    columns = {}
    # Each column's blocks are dropped once they are joined, so that a single column is in memory twice.
    for name in sorted(blocks, key=header.index):
        columns[name] = np.concatenate(blocks.pop(name) or [np.zeros(0)])
    line_of = np.concatenate(lines)
    table = InputTable(str(path), columns, lambda row: f"line {line_of[row]}")
    _refuse_decimals(table, label, "a class")
    if clients is not None:
        _refuse_decimals(table, clients, "a client")
    return table


def _refuse_decimals(table: InputTable, name: str, what: str) -> None:
    """Raises `DataError` for a column of measurements, numbers not all of which are integers, in place of names."""
    texts = table.columns[name]
    if texts.dtype.kind != "U":  # an input, too
        return
    fractional = []
    for text in np.unique(texts).tolist():
        if text.strip().lower() in MISSING:
            continue
        try:
            is_integer = float(text).is_integer()
        except ValueError:  # a name
            return
        if not is_integer:
            fractional.append(text)
    if fractional:
        row = int(np.argmax(np.isin(texts, fractional)))
        raise not_a_name(table, name, texts[row].strip(), row, what)


def _rows(text: io.TextIOWrapper, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields each row with the number of its last line; blank lines are left out."""
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
        except UnicodeDecodeError as error:
            raise ValueError(
                f"isn't in UTF-8 ({error.reason} at byte 0x{error.object[error.start]:02x}): "
                f"{_OTHER_ENCODING.format('latin-1')}"
            ) from error
        if row:
            yield reader.line_num, row


def _numbers(
    source: str, block: Sequence[tuple[int, list[str]]], names: Sequence[str], places: Sequence[int]
) -> list[np.ndarray]:
    """Converts the inputs of some rows, an array `[B]` for each column; missing ones are NaN."""
    cells = [row[place] for _, row in block for place in places]
    try:
        joined = "".join(cells)
        if "_" in joined or not joined.isascii():  # Python reads 1_000 and the digits of other scripts as numbers
            raise ValueError
        numbers = np.array(list(map(float, cells)))
    except ValueError:  # one by one, to find the cell
        numbers = np.full(len(cells), np.nan)
        for index, cell in enumerate(cells):
            text = cell.strip().lower()
            if text in MISSING:
                continue
            try:
                if "_" in text or not text.isascii():
                    raise ValueError
                numbers[index] = _TRUTH[text] if text in _TRUTH else float(text)
            except ValueError:
                row, column = divmod(index, len(places))
                texts = text_columns({name: cells[place :: len(places)] for place, name in enumerate(names)})
                raise not_a_number(source, names[column], cell, f"line {block[row][0]}", texts) from None
    columns = numbers.reshape(len(block), len(places)).T
    return [_kept(column, cells[index :: len(places)]) for index, column in enumerate(columns)]


def _kept(numbers: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Returns numbers in 32 bits, as inputs are, but as they were read if rounding would make them equal."""
    if not np.abs(numbers).max() > 2**24 and not rounding_matters(numbers).any():
        return numbers.astype(np.float32)
    try:
        return np.array(list(map(int, texts)), np.int64)  # not the floats, which have 53 bits
    except (ValueError, OverflowError):
        return numbers


def _texts(block: Sequence[tuple[int, list[str]]], name: str, place: int) -> np.ndarray:
    """Returns the names of classes, clients or categories of some rows."""
    texts = [row[place] for _, row in block]
    for (line, _), text in zip(block, texts, strict=True):
        if len(text) > _MAX_NAME:
            raise ValueError(
                f"line {line}: column {name!r} has a text of {len(text):,} characters; expected the name of a class, "
                f"client or category, of at most {_MAX_NAME}"
            )
    return np.array(texts, str)


READERS = (
    Reader(
        name="csv",
        description="Your own table, in a CSV file: path is that file, label and clients are names of its columns",
        origin="own",
        read=read_csv,
    ),
)
"""The user's own tables."""
