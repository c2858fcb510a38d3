"""The sections of a configuration on images that are held out of training, and their use."""

from typing import Annotated, Any, Self

from annotated_types import Gt, Lt
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from fedjax_bal.annotations import Count, Natural, NotNegative, Number, OneOf
from fedjax_bal.config.sections import Section
from fedjax_bal.metrics import SHOTS, EarlyStopping, stopping_metrics
from fedjax_bal.metrics import Shots as Bounds

_Share = Annotated[Number, Gt(0), Lt(1)] | None


class ShotsSection(Section):
    """The bounds of many-, medium- and few-shot classes, in training images of a class.

    Attributes:
        few: a class with fewer images is a few-shot class.
        many: a class with more images is a many-shot class.
    """

    few: Natural = SHOTS.few
    many: Natural = SHOTS.many

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.few > self.many:
            raise _refused(f"received few {self.few} above many {self.many}, so that classes could be both; lower few")
        return self

    @property
    def bounds(self) -> Bounds:
        """The bounds as the library has them."""
        return Bounds(self.few, self.many)


class ValidationSection(Section):
    """Training images that validate the global model: taken out before the partition, never trained on.

    They are the federation's set "validation". At most one of the two keys is given; without either, no set is made.

    Attributes:
        per_class: images of each class.
        fraction: share of each class.
    """

    per_class: Count | None = None
    fraction: _Share = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        return _only_one(self, "per_class", "fraction")

    @property
    def wanted(self) -> bool:
        """Whether such a set is made."""
        return self.per_class is not None or self.fraction is not None


class ClientTestSection(Section):
    """Images that test each client, the global model's and its own; never trained on.

    At most one of the two keys is given; without either, clients are not tested.

    Attributes:
        fraction: share of each client's rows that is held out for it, drawn with the partition's seed.
        per_client: images of the test set for each client instead, in the proportions of its own classes.
    """

    fraction: _Share = None
    per_client: Count | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        return _only_one(self, "fraction", "per_client")

    @property
    def wanted(self) -> bool:
        """Whether clients are tested."""
        return self.fraction is not None or self.per_client is not None


class EarlyStoppingSection(Section):
    """When a run ends before its last round: see `fedjax_bal.metrics.EarlyStopping`.

    Attributes:
        patience: evaluated rounds in a row without improvement; None for never. The run ends with the dispatch in which
            this number is reached, whatever that dispatch's later rounds bring.
        metric: a metric of the validation rows.
        min_delta: the least increase over the best so far that counts as an improvement.
    """

    patience: Count | None = None
    metric: Annotated[str, OneOf(stopping_metrics)] = EarlyStopping().metric
    min_delta: NotNegative = 0.0

    @property
    def rule(self) -> EarlyStopping:
        """The rule as the library has it."""
        return EarlyStopping(self.patience, self.metric, self.min_delta)


def missing_dependency(training: Any, evaluation: Any) -> tuple[tuple[str, str], Any, str] | None:
    """Returns the place, value and remedy of an option that needs another one; None if all is well."""
    if training.early_stopping.patience is not None and not evaluation.validation.wanted:
        text = "needs validation images: set evaluation.validation, for instance to {per_class: 50}"
        return ("training", "early_stopping"), training.early_stopping.patience, text
    if evaluation.personalised is not None and not evaluation.client_test.wanted:
        text = "needs test images of clients: set evaluation.client_test, for instance to {fraction: 0.2}"
        return ("evaluation", "personalised"), evaluation.personalised, text
    return None


def _only_one(section: Any, first: str, second: str) -> Any:
    one, other = getattr(section, first), getattr(section, second)
    if one is not None and other is not None:
        raise _refused(f"received {first} {one} and {second} {other}; give one of them and set the other to null")
    return section


def _refused(text: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{text}", {"text": text})
