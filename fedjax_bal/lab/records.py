"""The contents of a folder: parts of `summary.json`, and the records that readers get.

Metrics are declared in `fedjax_bal.metrics`.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np

from fedjax_bal.analyses import Findings


class Composition(TypedDict):
    """Estimated against true class shares of the clients."""

    clients: int
    rank_correlation: float | None


class AddedRows(TypedDict):
    """Rows of each class before and after augmentation, and what it adds."""

    before: list[int]
    after: list[int]
    extra_rows: int
    extra_bytes: int


class Partition(TypedDict):
    """The partition of some methods: the classes of the clients that are shown, and of all clients together."""

    methods: list[str]
    data: str
    sha256: str  # of images, labels, names and partition, without augmented copies
    clients: int
    mean: list[float]
    std: list[float]
    input_shape: list[int]
    input_names: NotRequired[list[str]]
    client_names: NotRequired[list[str]]
    input_dtype: str
    shown: list[int]
    class_counts: list[list[int]]
    samples: list[int]
    augmentation: NotRequired[AddedRows]


class MiniBatches(TypedDict):
    """The divergence of the classes in mini-batches from equal shares, before and after methods add rows."""

    methods: list[str]
    kl_before: float
    kl_after: float


class Command(TypedDict):
    """Options with which a page's command repeats the run: its plug-ins (files or modules) and its data folder."""

    plugins: list[str]
    data_dir: str | None


class RunId(NamedTuple):
    """Identifies a run of a comparison."""

    method: str
    seed: int


class ClientResults(NamedTuple):
    """The last evaluation of a run on each client's own test rows: a block of `clients.csv`, a row for each client.

    Attributes:
        method: the method's name.
        seed: the seed.
        names: the clients' names, or else their numbers, in the order of the clients.
        training_rows: `Int[N]`, without augmented copies.
        test_rows: `Int[N]`.
        accuracy: `Float[N]`; nan for a client without test rows.
        balanced_accuracy: mean over the classes of the client's test rows, `Float[N]`; nan where unknown.
        fine_tuned_accuracy: of the final model fine-tuned on the client, `Float[N]`; nan where unknown.
        new: whether the client joined when training was over, and is tested with the final global model, `Bool[N]`.
    """

    method: str
    seed: int
    names: tuple[str, ...]
    training_rows: np.ndarray
    test_rows: np.ndarray
    accuracy: np.ndarray
    balanced_accuracy: np.ndarray
    fine_tuned_accuracy: np.ndarray
    new: np.ndarray

    @property
    def labels(self) -> tuple[str, ...]:
        """The clients' names, with a remark on new ones."""
        return tuple(f"{name} (new)" if new else name for name, new in zip(self.names, self.new, strict=True))

    @property
    def named(self) -> bool:
        """Returns whether the clients have names, not only numbers."""
        return self.names != tuple(map(str, range(len(self.names))))


class RunRecord(NamedTuple):
    """The content of a run folder."""

    config: dict[str, Any]  # resolved
    config_text: str  # names copies of files in the folder
    lines: list[dict[str, Any]]  # of metrics.jsonl, one per run and round, in file order
    summary: dict[str, Any]
    # UInt8[c, S, H, W, K] by name, of each method's first seed: generated images and real ones.
    pictures: Mapping[str, Mapping[str, np.ndarray]] = MappingProxyType({})
    clients: Sequence[ClientResults] = ()
    # Of each method's first seed, by analysis and method.
    findings: Mapping[str, Mapping[str, Findings]] = MappingProxyType({})


def unwritten_summary(config: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the summary of a first session that hasn't ended: without results, and with numbers as class names."""
    classes = max((len(line.get("per_class_accuracy") or ()) for line in lines), default=0)
    return {
        "name": str(config.get("name")),
        "finished": False,
        "target_accuracy": (config.get("evaluation") or {}).get("target_accuracy"),
        "class_names": [str(number) for number in range(classes)],
        "command": None,
        "device": None,
        "versions": {},
        **dict.fromkeys(("compile_s", "wall_s", "client_updates_per_s", "samples_per_s")),
        "partitions": [],
        "batches": [],
        "runs": [],
    }
