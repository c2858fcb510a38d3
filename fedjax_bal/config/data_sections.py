"""The sections of a configuration on data, who holds what of it, and the model."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import model_validator

from fedjax_bal.config import registries
from fedjax_bal.config.rules import Count, OneOf, Real, Seed, Whole, under
from fedjax_bal.config.sections import Section, Variant, refused


class DatasetSection(Variant):
    """Which images.

    Attributes:
        name: one of `fedjax_bal.data.DATASETS`. Beside it stand `mean` and `std`, with which pixels are normalised: a
            number, one for each channel, or `own` for that of the training images, see `fedjax_bal.data.normalisation`;
            and for one's own files a path, and what their reader takes.
    """

    choice: ClassVar[str | None] = "name"

    name: Annotated[str, under(OneOf(lambda: registries.datasets()))]

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of the data sets."""
        return tuple(registries.datasets())

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The constants that pixels are normalised with, and what the reader of one's own files takes."""
        return registries.dataset_parameters(name)

    @classmethod
    def later(cls) -> frozenset[str]:
        """The constants."""
        return frozenset({"mean", "std"})


class PartitionSection(Variant):
    """How the training images are shared out.

    Attributes:
        scheme: one of `fedjax_bal.data.partition.SCHEMES`, or another name of one; its parameters stand beside it.
        clients: N, how many clients there are.
        seed: the seed of the partition alone.
        imbalance_factor: the largest class over the smallest, before the scheme shares out what is left; 1 leaves all
            images in.
        imbalance_profile: how class sizes fall, see `fedjax_bal.data.partition.long_tailed`.
        imbalance_order: which class is the largest, see there.
    """

    choice: ClassVar[str | None] = "scheme"

    scheme: Annotated[str, under(OneOf(lambda: registries.schemes(), lambda: registries.other_names_of_schemes()))]
    clients: Count
    seed: Seed
    imbalance_factor: Annotated[float, under(Real(1))] = 1.0
    imbalance_profile: Annotated[str, under(OneOf(("exponential", "step")))] = "exponential"
    imbalance_order: Annotated[str, under(OneOf(("label", "frequency", "random")))] = "label"

    @classmethod
    def names(cls) -> Sequence[str]:
        """The partition schemes."""
        return tuple(registries.schemes())

    @classmethod
    def chosen(cls, value: Mapping[str, Any]) -> type[Section] | None:
        """The class with the parameters of the scheme, whatever name it goes by."""
        return super().chosen(by_own_name(value))

    @model_validator(mode="before")
    @classmethod
    def _named_as_here(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        key = contradicted_parameter(value)
        if key is not None:
            raise refused(
                (key,), f"received {value[key]!r}, which the scheme's name says already; leave it out", value[key]
            )
        return by_own_name(value)

    @property
    def drawing(self) -> dict[str, Any]:
        """What `fedjax_bal.data.partition.draw` takes beside the labels."""
        return {**{key: getattr(self, key) for key in self.common()}, "parameters": self.parameters}

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The parameters of a scheme."""
        return registries.parameters(registries.schemes()[name], skip=registries.from_dataset())


def by_own_name(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A partition whose scheme goes by its own name, with the parameters that another name implied."""
    alias = _alias(value)
    return value if alias is None else {**alias.parameters, **value, "scheme": alias.scheme}


def contradicted_parameter(value: Mapping[str, Any]) -> str | None:
    """The parameter of a partition that its scheme's name has a number for, and another one; None where none is."""
    alias, key = _alias(value), "classes_per_client"  # what other names imply is a default
    wanted = None if alias is None else alias.parameters.get(key)
    return key if wanted is not None and value.get(key, wanted) != wanted else None


def _alias(value: Mapping[str, Any]) -> Any:
    name = value.get("scheme")
    return registries.scheme_alias(name) if isinstance(name, str) and name not in registries.schemes() else None


class AuxiliarySection(Section):
    """Balanced images that the server keeps for itself, for methods that use some.

    They are the set "balanced" of the federation.

    Attributes:
        per_class: how many images of each class; 0 for none.
        source: `train` takes them out of the training images before these are partitioned, drawn with the partition's
            seed; `test` takes the first ones of each class in the test set, which stay in it as well: so do the papers,
            but the server then trains on what it is tested on.
    """

    per_class: Annotated[int, under(Whole(0))] = 0
    source: Annotated[str, under(OneOf(("train", "test")))] = "train"


class ModelSection(Variant):
    """Which network.

    Attributes:
        name: one of `fedjax_bal.models.MODELS`; its options stand beside it.
        convolution: `fast`, or `plain` for what needs second derivatives; that one on a single device of a CPU.
    """

    choice: ClassVar[str | None] = "name"

    name: Annotated[str, under(OneOf(lambda: registries.models()))]
    convolution: Annotated[str, under(OneOf(("fast", "plain")))] = "fast"

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of the models."""
        return tuple(registries.models())

    @classmethod
    def parameters_of(cls, name: str) -> Mapping[str, Any]:
        """The options of a model."""
        return registries.model_parameters(name)

    @classmethod
    def later(cls) -> frozenset[str]:
        """All options."""
        return frozenset(cls.model_fields) - cls.common()
