"""The sections of a configuration on the federation: data set, partition and model, and its clients."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, MinLen
from pydantic import model_validator

from fedjax_bal.annotations import Count, Natural, Number, OneOf, Positive, Readable, Seed, parameters
from fedjax_bal.config.sections import Section, Variant, refused

ALL_CLIENTS: Literal["all"] = "all"
"""The number of clients of a partition by the data set's own writers or users: each of them is one."""

_Constant = Literal["own"] | Number | Annotated[tuple[Number, ...], MinLen(1)]
_PositiveConstant = Literal["own"] | Positive | Annotated[tuple[Positive, ...], MinLen(1)]


class DatasetSection(Variant):
    """The data set.

    Attributes:
        name: one of `fedjax_bal.data.DATASETS`. Beside it stand `mean` and `std`, with which pixels are normalised: a
            number, one for each channel, or `own` for that of the training images, see `fedjax_bal.data.normalisation`.
            A data set of the user's own files has a path, and the arguments of its reader.
    """

    registry: ClassVar[str] = "data.DATASETS"

    name: Annotated[str, OneOf(lambda: DatasetSection.choices())] = "fashion_mnist_small"

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The normalisation constants, and the arguments of the reader of the user's own files."""
        from fedjax_bal.data import DATASETS, OWN

        reader = DATASETS[name]
        constants = {"mean": (_Constant, reader.mean or OWN), "std": (_PositiveConstant, reader.std or OWN)}
        return {**(parameters(reader.read) if reader.origin == "own" else {}), **constants}


class PartitionSection(Variant):
    """How the training images are divided among clients.

    Attributes:
        scheme: one of `fedjax_bal.data.SCHEMES`, or an alias of one; its parameters stand beside it. Without it,
            `dirichlet` at an alpha of 0.3.
        clients: N, the number of clients. With `natural` it is `all` by default: each writer or user of the data set.
        seed: the seed of the partition alone.
        imbalance_factor: the largest class over the smallest, before the scheme divides the remaining images; 1 keeps
            all images.
        imbalance_profile: how class sizes fall, see `fedjax_bal.data.partition.long_tailed`.
        imbalance_order: which class is the largest, see there.
    """

    registry: ClassVar[str] = "data.SCHEMES"
    choice: ClassVar[str | None] = "scheme"

    scheme: Annotated[str, OneOf(lambda: PartitionSection.choices(), lambda: PartitionSection.aliases())]
    clients: Count | Literal["all"] = 20
    seed: Seed = 0
    imbalance_factor: Annotated[Number, Ge(1)] = 1.0
    imbalance_profile: Literal["exponential", "step"] = "exponential"
    imbalance_order: Literal["label", "frequency", "random"] = "label"

    @classmethod
    def aliases(cls) -> dict[str, str]:
        """The scheme of each alias."""
        from fedjax_bal.data import ALIASES

        return {name: alias.scheme for name, alias in ALIASES.items()}

    @classmethod
    def chosen(cls, value: Mapping[str, Any]) -> type[Section] | None:
        """The class with the parameters of the scheme, given by its name or an alias."""
        return super().chosen(_with_scheme(value))

    @model_validator(mode="before")
    @classmethod
    def _named_as_here(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        key = contradicted_parameter(value)
        if key is not None:
            raise refused(f"received {value[key]!r}, which the scheme's name says already; leave it out", key)
        return _with_scheme(value)

    @property
    def drawing(self) -> dict[str, Any]:
        """The arguments of `fedjax_bal.data.draw` besides the labels."""
        shared = {key: getattr(self, key) for key in self.common()}
        return {**shared, "clients": self.known_clients, "parameters": self.parameters}

    @property
    def known_clients(self) -> int | None:
        """The number of clients; None if the data set decides it."""
        return None if self.clients == ALL_CLIENTS else self.clients

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The parameters of a scheme."""
        from fedjax_bal.data import FROM_DATASET, takes_owners

        own = parameters(cls.choices()[name], skip=("rng", "labels", "num_clients", *FROM_DATASET))
        return {**own, "clients": (Count | Literal["all"], ALL_CLIENTS) if takes_owners(name) else (Count, 20)}


def _with_scheme(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return by_own_name(value) if "scheme" in value else {"scheme": "dirichlet", "alpha": 0.3, **value}


def by_own_name(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replaces a scheme's alias by its name, and adds the parameters that the alias implies."""
    alias = _alias(value)
    return value if alias is None else {**alias.parameters, **value, "scheme": alias.scheme}


def contradicted_parameter(value: Mapping[str, Any]) -> str | None:
    """Names the parameter that contradicts the number in a scheme's alias; None if none does."""
    alias, key = _alias(value), "classes_per_client"  # what other names imply is a default
    wanted = None if alias is None else alias.parameters.get(key)
    return key if wanted is not None and value.get(key, wanted) != wanted else None


def _alias(value: Mapping[str, Any]) -> Any:
    from fedjax_bal.data import resolve

    name = value.get("scheme")
    return resolve(name) if isinstance(name, str) and name not in PartitionSection.choices() else None


class AuxiliarySection(Section):
    """Balanced images that the server keeps for methods that use some: the federation's set "balanced".

    Attributes:
        per_class: images of each class; 0 for none.
        source: `train` takes them out of the training images before the partition, drawn with the partition's seed;
            `test` takes the first ones of each class in the test set and leaves them there too: so do the papers, but
            the server then trains on images that it is tested on.
    """

    per_class: Natural = 0
    source: Literal["train", "test"] = "train"


class ModelSection(Variant):
    """The network.

    Attributes:
        name: one of `fedjax_bal.models.MODELS`; its options stand beside it.
        convolution: `auto` for the best that the machine can run, `builtin` or `fast`, with which the run then goes on
            anywhere; `fast`, in XLA; `builtin`, through jaxlib's own oneDNN, for CPUs; `onednn`, once `python -m
            fedjax_bal.models.onednn` has compiled it; or `plain` for what needs second derivatives, on a single device
            of a CPU.
    """

    registry: ClassVar[str] = "models.MODELS"

    name: Annotated[str, OneOf(lambda: ModelSection.choices())] = "mlp"
    convolution: Literal["auto", "fast", "builtin", "onednn", "plain"] = "auto"

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The options of a model."""
        from fedjax_bal.models import options

        return {
            key: (Annotated[Any, Readable(*option.allowed)], option.default) for key, option in options(name).items()
        }


class SelectionSection(Variant):
    """How clients are selected.

    Attributes:
        name: one of `fedjax_bal.selection.SELECTORS`; its parameters stand beside it. A recipe with a selector of its
            own (astraea, flcir) uses that where this is `uniform`. Updates are averaged by number of samples; after
            `by_size` and `power_of_choice`, which draw clients so, plainly.
        clients_per_round: the cohort's size; all available clients where these are fewer. By default 10, or all
            clients where there are fewer.
    """

    registry: ClassVar[str] = "selection.SELECTORS"

    name: Annotated[str, OneOf(lambda: SelectionSection.choices())] = "uniform"
    clients_per_round: Count = 10

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The parameters of a selector, without those that the federation gives."""
        from fedjax_bal.selection import FROM_FEDERATION

        return parameters(cls.choices()[name], skip=("clients_per_round", *FROM_FEDERATION))


class AvailabilitySection(Variant):
    """The clients that can be selected in a round.

    Attributes:
        name: `always`; `bernoulli`: each client with probability p, in some rounds none; `periodic`: the same, redrawn
            every `period` rounds; `clustered`: client i with the i-th probability of the list p, which repeats;
            `trace`: read from a file, see `fedjax_bal.selection.trace`. A round without clients trains nothing.
    """

    registry: ClassVar[str] = "selection.AVAILABILITY"

    name: Annotated[str, OneOf(lambda: AvailabilitySection.choices())] = "always"


class DeliverySection(Variant):
    """The clients that send their update back.

    Attributes:
        name: `always`; `bernoulli`: each selected client with probability p; `trace`: read from a file.
    """

    registry: ClassVar[str] = "selection.DELIVERY"

    name: Annotated[str, OneOf(lambda: DeliverySection.choices())] = "always"


class SpeedSection(Variant):
    """How fast clients compute, and how late clients are handled.

    Attributes:
        name: `unlimited`, time plays no role; `constant`, `uniform` or `lognormal`, the distribution of local steps a
            second; `file`, read from a file. Beside it stand `deadline`, the seconds of a round, null for none, and
            `late`: `partial`, a client that would take longer does the steps that fit; `drop`, it doesn't deliver.
    """

    registry: ClassVar[str] = "selection.SPEEDS"

    name: Annotated[str, OneOf(lambda: SpeedSection.choices())] = "unlimited"
