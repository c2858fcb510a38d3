"""The sections of a configuration, and the configuration itself."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from fedjax_bal.config.client_sections import AvailabilitySection, DeliverySection, SelectionSection, SpeedSection
from fedjax_bal.config.data_sections import AuxiliarySection, DatasetSection, ModelSection, PartitionSection
from fedjax_bal.config.held_out import ClientTestSection, ShotsSection, ValidationSection, missing_dependency
from fedjax_bal.config.rules import Count, OneOf, OrNull, Real, Switch, Whole, WordOr, under
from fedjax_bal.config.sections import Section, refused
from fedjax_bal.config.training_sections import TrainingSection


class EvaluationSection(Section):
    """When the global model is tested.

    Attributes:
        every: rounds between two tests.
        update_diversity: report how far apart the updates of each round lie (ReBaFL eq. 24).
        local_accuracy: report how well the clients' own models do on their own rows after training.
        local_test_images: on how many test images they are tried too, in each evaluated round; 0 for none.
        privacy: at the end of each method's run with the first seed, look for what it gives away: neighbours of
            generated images among the clients', and attacks on shared prototypes.
        attack_steps: training steps of each of these attacks.
        traffic: how a client counts that a mediator visits several times a round: `paper`, once, as in Astraea's
            formula; `exact`, as often as models are exchanged.
        target_accuracy: the accuracy in (0, 1] whose first round is reported; None for none.
        shots: which classes count as many-, medium- and few-shot.
        validation: training images on which the global model is validated.
        client_test: images on which each client is tested.
        personalised: for how many epochs the final global model is fine-tuned on each client, which is then tested;
            None for not. With plain cross-entropy and the local optimizer, whatever the method, at the learning rate of
            the round after the last; `step_schedule` counts for nothing.
    """

    every: Count = 1
    update_diversity: Switch = False
    local_accuracy: Switch = False
    local_test_images: Annotated[int, under(Whole(0))] = 0
    privacy: Switch = False
    attack_steps: Count = 1000
    traffic: Annotated[str, under(OneOf(("paper", "exact")))] = "paper"
    target_accuracy: Annotated[float | None, under(OrNull(Real(0, 1, above=True)))] = None
    shots: ShotsSection = Field(default_factory=dict)  # type: ignore[arg-type]
    validation: ValidationSection = Field(default_factory=dict)  # type: ignore[arg-type]
    client_test: ClientTestSection = Field(default_factory=dict)  # type: ignore[arg-type]
    personalised: Annotated[int | None, under(OrNull(Whole(1)))] = None


class ExecutionSection(Section):
    """How the work is laid out on the machine.

    Attributes:
        strategy: of the client axis; `auto` picks by backend.
        devices: how many devices share the work; `auto` for all, which on a CPU is one unless `--devices` says more.
        chunk: clients at a time on each device under vmap; `auto` for as many as waste little and fit into memory.
        client_memory: where what a method remembers of each client is kept; `auto` for the devices where it fits.
        precision: in which models compute; parameters and sums over clients stay float32.
        rounds_per_dispatch: rounds that one call of the compiled program does; `auto` for 5, or 1 where the selector
            looks at each round's outcome before it chooses again.
        checkpoint_every: rounds between two checkpoints.
        broken_clients: what becomes of clients whose update is not finite, or huge: `raise`, the run ends; `exclude`,
            each round is as if they had not delivered; `clip`, that too, but updates that are far longer than the
            others of their round are scaled down.
        clip_factor: how far: more than so many times the median norm.
        huge_factor: under `raise` and `exclude`, an update is huge that leads to parameters of more than so many times
            the median norm of its round's, and more than that number itself; null for no bound.
    """

    strategy: Annotated[str, under(OneOf(("auto", "map", "vmap")))] = "auto"
    devices: Annotated[str | int, under(WordOr(Whole(1)))] = "auto"
    chunk: Annotated[str | int, under(WordOr(Whole(1)))] = "auto"
    client_memory: Annotated[str, under(OneOf(("auto", "device", "host")))] = "auto"
    precision: Annotated[str, under(OneOf(("float32", "tensorfloat32", "bfloat16")))] = "float32"
    rounds_per_dispatch: Annotated[str | int, under(WordOr(Whole(1)))] = "auto"
    checkpoint_every: Count = 10
    broken_clients: Annotated[str, under(OneOf(("raise", "exclude", "clip")))] = "raise"
    clip_factor: Annotated[float, under(Real(1))] = 10.0
    huge_factor: Annotated[float | None, under(OrNull(Real(1)))] = 100.0


class Sections(Section):
    """The sections that describe one federation and its training; each may be overridden for one method."""

    dataset: DatasetSection
    partition: PartitionSection
    auxiliary: AuxiliarySection = Field(default_factory=dict)  # type: ignore[arg-type]
    model: ModelSection
    training: TrainingSection
    selection: SelectionSection
    availability: AvailabilitySection = Field(default_factory=dict)  # type: ignore[arg-type]
    delivery: DeliverySection = Field(default_factory=dict)  # type: ignore[arg-type]
    speed: SpeedSection = Field(default_factory=dict)  # type: ignore[arg-type]
    evaluation: EvaluationSection = Field(default_factory=dict)  # type: ignore[arg-type]
    execution: ExecutionSection = Field(default_factory=dict)  # type: ignore[arg-type]

    @model_validator(mode="after")
    def _enough_clients(self) -> Self:
        asked, there = self.selection.clients_per_round, self.partition.clients
        if asked <= there:
            return self
        text = (
            f"received {asked}, more clients a round than the {there} of partition.clients; at most {there} is allowed"
        )
        raise refused(("selection", "clients_per_round"), text, asked)

    @model_validator(mode="after")
    def _with_what_it_needs(self) -> Self:
        found = missing_dependency(self.training, self.evaluation)
        if found is None:
            return self
        place, received, text = found
        raise refused(place, f"received {received}, {text}", received)
