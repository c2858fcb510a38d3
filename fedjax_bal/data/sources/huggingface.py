"""Data sets of Hugging Face: the user's own, in a folder, or those of the hub, by name."""

import os
from collections.abc import Sequence

from fedjax_bal.annotations import ProperShare, Seed, Text, checked
from fedjax_bal.data.arrays import TestBy
from fedjax_bal.data.huggingface import from_huggingface
from fedjax_bal.data.sources.reader import Reader
from fedjax_bal.types import Dataset


@checked
def read_huggingface(
    path: str | os.PathLike,
    label: Text = "label",
    clients: Text | None = None,
    inputs: Text | Sequence[Text] | None = None,
    split: Text | None = None,
    test: ProperShare | Text | None = None,
    test_seed: Seed = 0,
    test_by: TestBy = "classes",
    categories: Sequence[Text] | None = None,
    config: Text | None = None,
) -> Dataset:
    """Reads a data set with the library `datasets`, the extra `huggingface`; scripts are never run.

    Args:
        path: a folder that `save_to_disk` has written; a folder of Parquet or other files that `load_dataset` reads; or
            the name of a data set on huggingface.co, which is downloaded once.
        label: the column of the classes.
        clients: the column of users, for a natural partition.
        inputs: the column of images, arrays or lists; or several columns, of numbers or `categories`. By default the
            column of pictures, or `image`; without either, all other columns.
        split: the split to train on, by default `train`.
        test: the split to test on, by default `test`; or, of a single split by default 0.2, the share of each class
            that becomes the test set.
        test_seed: the seed of that share.
        test_by: "clients" holds out a share of the users instead, with all their rows.
        categories: the columns of inputs whose values become inputs of 0 and 1, such as `sex=F`.
        config: the configuration of a data set on the hub that has several.

    Returns:
        The data set, see `fedjax_bal.data.from_huggingface`.

    Raises:
        DataError: the path can't be loaded, a column or split doesn't exist, or the columns can't be what they are
            named for.
    """
    return from_huggingface(
        path,
        test,
        inputs=inputs,
        label=label,
        clients=clients,
        test_seed=test_seed,
        test_by=test_by,
        categories=categories,
        split=split,
        config=config,
    )


READERS = (
    Reader(
        name="huggingface",
        description="A Hugging Face data set: path is its name on the hub, or a folder of yours",
        origin="own",
        read=read_huggingface,
        on_hub=True,
    ),
)
"""Hugging Face's data sets."""
