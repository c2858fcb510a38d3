"""Data: loading, partitioning over clients, and the federation that the engine trains on."""

from fedjax_bal.data import inventory, partition
from fedjax_bal.data.adapters import from_arrays, from_pandas
from fedjax_bal.data.augmentation import augment, copy_options, extra_bytes
from fedjax_bal.data.batches import (
    append_rows,
    bounded_loop,
    gather,
    normalised,
    over_rows,
    random_order,
    stack_rows,
    with_images,
)
from fedjax_bal.data.description import (
    DISTANCES,
    ClientDistances,
    Description,
    Distance,
    client_distances,
    describe,
    empty_clients,
)
from fedjax_bal.data.examples import from_tf_data, from_torch
from fedjax_bal.data.federation import client_names, federate, users_of_clients
from fedjax_bal.data.held_out import carve, carve_share, hold_out, hold_out_clients, num_new_clients, rows_by_share
from fedjax_bal.data.huggingface import from_huggingface
from fedjax_bal.data.inputs import are_tokens, check_images, check_one_type, checked_examples, is_frame, pad, to_array
from fedjax_bal.data.inventory import folder_of, inventory_digest, prepared_status
from fedjax_bal.data.loading import OWN, load, normalisation, stand_in
from fedjax_bal.data.matching import class_numbers, columns_by_name
from fedjax_bal.data.memory import available_bytes, resident_peak
from fedjax_bal.data.npz_file import read_arrays
from fedjax_bal.data.partition import ALIASES, FROM_DATASET, SCHEMES, resolve, takes_owners
from fedjax_bal.data.partition.dealing import MAX_ROWS
from fedjax_bal.data.reading import DataError, reading
from fedjax_bal.data.sources import DATASETS, find_reader
from fedjax_bal.data.sources.reader import Reader

__all__ = [
    "ALIASES",
    "DATASETS",
    "DISTANCES",
    "FROM_DATASET",
    "MAX_ROWS",
    "OWN",
    "SCHEMES",
    "ClientDistances",
    "DataError",
    "Description",
    "Distance",
    "Reader",
    "append_rows",
    "are_tokens",
    "augment",
    "available_bytes",
    "bounded_loop",
    "carve",
    "carve_share",
    "check_images",
    "check_one_type",
    "checked_examples",
    "class_numbers",
    "client_distances",
    "client_names",
    "columns_by_name",
    "copy_options",
    "describe",
    "empty_clients",
    "extra_bytes",
    "federate",
    "find_reader",
    "folder_of",
    "from_arrays",
    "from_huggingface",
    "from_pandas",
    "from_tf_data",
    "from_torch",
    "gather",
    "hold_out",
    "hold_out_clients",
    "inventory",
    "inventory_digest",
    "is_frame",
    "load",
    "normalisation",
    "normalised",
    "num_new_clients",
    "over_rows",
    "pad",
    "partition",
    "prepared_status",
    "random_order",
    "read_arrays",
    "reading",
    "resident_peak",
    "resolve",
    "rows_by_share",
    "stack_rows",
    "stand_in",
    "takes_owners",
    "to_array",
    "users_of_clients",
    "with_images",
]


def __dir__() -> list[str]:
    return __all__
