"""The sections that say what is held out of training, and what for."""

from typing import Annotated, Any, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from fedjax_bal.config.rules import NotNegative, OneOf, OrNull, Real, Whole, under
from fedjax_bal.config.sections import Section
from fedjax_bal.metrics import SHOTS, STOPPING_METRICS, EarlyStopping
from fedjax_bal.metrics import Shots as Bounds

_Share = Annotated[float | None, under(OrNull(Real(0, 1, above=True, below=True)))]
_Number = Annotated[int | None, under(OrNull(Whole(1)))]


class ShotsSection(Section):
    """Where the groups of many-, medium- and few-shot classes end, in training images of a class.

    Attributes:
        few: a class with fewer images is a few-shot class.
        many: one with more is a many-shot class.
    """

    few: Annotated[int, under(Whole(0))] = SHOTS.few
    many: Annotated[int, under(Whole(0))] = SHOTS.many

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.few > self.many:
            raise _refused(f"received few {self.few} above many {self.many}, so that classes could be both; lower few")
        return self

    @property
    def bounds(self) -> Bounds:
        """What `fedjax_bal.options.Evaluation` takes."""
        return Bounds(self.few, self.many)


class ValidationSection(Section):
    """Training images on which the global model is validated: taken out before the partition, never trained on.

    They are the set "validation" of the federation. At most one of the two keys is given; without any there is none.

    Attributes:
        per_class: how many images of each class.
        fraction: which share of each class.
    """

    per_class: _Number = None
    fraction: _Share = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        return _only_one(self, "per_class", "fraction")

    @property
    def wanted(self) -> bool:
        """Whether there is to be such a set."""
        return self.per_class is not None or self.fraction is not None


class ClientTestSection(Section):
    """Images on which each client is tested, the global model and its own; never trained on.

    At most one of the two keys is given; without any, clients are not tested.

    Attributes:
        fraction: which share of each client's rows is held out for that, drawn with the partition's seed.
        per_client: how many images of the test set each client gets instead, in the proportions of its own classes.
    """

    fraction: _Share = None
    per_client: _Number = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        return _only_one(self, "fraction", "per_client")

    @property
    def wanted(self) -> bool:
        """Whether clients are to be tested."""
        return self.fraction is not None or self.per_client is not None


class EarlyStoppingSection(Section):
    """When a run ends before its last round: see `fedjax_bal.metrics.stopping.EarlyStopping`.

    Attributes:
        patience: evaluated rounds in a row without an improvement; None for never. The run ends with the dispatch in
            which they are full.
        metric: which metric of the validation rows.
        min_delta: by how much more than the best so far counts as an improvement.
    """

    patience: _Number = None
    metric: Annotated[str, under(OneOf(STOPPING_METRICS))] = EarlyStopping().metric
    min_delta: NotNegative = 0.0

    @property
    def rule(self) -> EarlyStopping:
        """The rule itself."""
        return EarlyStopping(self.patience, self.metric, self.min_delta)


def missing_dependency(training: Any, evaluation: Any) -> tuple[tuple[str, str], Any, str] | None:
    """What is asked for without what it needs.

    Args:
        training: the section of that name.
        evaluation: the section of that name.

    Returns:
        The place, the value received there and what to do; None where all is well.
    """
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
