"""The sections of a configuration together."""

from typing import Self

from pydantic import Field, model_validator

from fedjax_bal.annotations import Count, Probability, Switch
from fedjax_bal.config.client_sections import AvailabilitySection, DeliverySection, SelectionSection, SpeedSection
from fedjax_bal.config.data_sections import AuxiliarySection, DatasetSection, ModelSection, PartitionSection
from fedjax_bal.config.held_out import ClientTestSection, ShotsSection, ValidationSection, missing_dependency
from fedjax_bal.config.options_section import OptionsSection, with_options
from fedjax_bal.config.sections import Section, refused
from fedjax_bal.config.training_sections import TrainingSection
from fedjax_bal.options import Evaluation, Execution


@with_options(Evaluation, before={"privacy": "traffic", "attack_steps": "traffic", "target_accuracy": "shots"})
class EvaluationSection(OptionsSection):
    """When the global model is tested: the options of `fedjax_bal.options.Evaluation`, and more reports.

    Attributes:
        privacy: at the end of each method's run with the first seed, measure what it gives away: neighbours of
            generated images among the clients', and attacks on shared prototypes.
        attack_steps: training steps of each of these attacks.
        target_accuracy: the accuracy in (0, 1] whose first round is reported; None for none.
        shots: the bounds of many-, medium- and few-shot classes.
        validation: training images that validate the global model.
        client_test: images that test each client.
        personalised: epochs for which the final global model is fine-tuned on each client, which is then tested; None
            for no fine-tuning. It uses plain cross-entropy and the local optimizer, whatever the method, at the
            learning rate of the round after the last; `step_schedule` is ignored.
    """

    privacy: Switch = False
    attack_steps: Count = 1000
    target_accuracy: Probability | None = None
    shots: ShotsSection = Field(default_factory=ShotsSection.default)
    validation: ValidationSection = Field(default_factory=ValidationSection.default)
    client_test: ClientTestSection = Field(default_factory=ClientTestSection.default)
    personalised: Count | None = None

    @property
    def options(self) -> Evaluation:
        """The options of the library."""
        return Evaluation(**self.arguments(shots=self.shots.bounds))


@with_options(Execution, names={"differentiable": None}, before={"checkpoint_every": "broken_clients"})
class ExecutionSection(OptionsSection):
    """How the work is laid out on the machine: the options of `fedjax_bal.options.Execution`, and checkpoints.

    A CPU has a device for each core unless `--devices` asks for another number; a folder's runs go on with those that
    they began with.

    Attributes:
        checkpoint_every: rounds between two checkpoints.
    """

    checkpoint_every: Count = 10

    @property
    def options(self) -> Execution:
        """The options of the library."""
        return Execution(**self.arguments())


class Sections(Section):
    """The sections that describe one federation and its training; each may be overridden for one method."""

    dataset: DatasetSection = Field(default_factory=DatasetSection.default)
    partition: PartitionSection = Field(default_factory=PartitionSection.default)
    auxiliary: AuxiliarySection = Field(default_factory=AuxiliarySection.default)
    model: ModelSection = Field(default_factory=ModelSection.default)
    training: TrainingSection = Field(default_factory=TrainingSection.default)
    selection: SelectionSection = Field(default_factory=SelectionSection.default)
    availability: AvailabilitySection = Field(default_factory=AvailabilitySection.default)
    delivery: DeliverySection = Field(default_factory=DeliverySection.default)
    speed: SpeedSection = Field(default_factory=SpeedSection.default)
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection.default)
    execution: ExecutionSection = Field(default_factory=ExecutionSection.default)

    @model_validator(mode="after")
    def _enough_clients(self) -> Self:
        asked, there = self.selection.clients_per_round, self.partition.known_clients
        if there is None or asked <= there:
            return self
        if "clients_per_round" not in self.selection.model_fields_set:  # a default must not be refused
            selection = self.selection.model_copy(update={"clients_per_round": there})
            return self.model_copy(update={"selection": selection})
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
