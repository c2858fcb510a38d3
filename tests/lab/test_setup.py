"""From a configuration to simulations: what methods share, and where a wrong value is said to stand."""

import jax
import numpy as np
import pytest
import small_run

from fedjax_bal.config import load_config
from fedjax_bal.data import federate
from fedjax_bal.lab.setup import SetupError, SharedInputs, set_up
from fedjax_bal.parts import Part, part
from fedjax_bal.recipes import Recipe

PARTITION = "{scheme: astraea, variant: LTRF2, clients: 10, total: 200, seed: %d}"


def made(tmp_path, methods, *overrides):
    wanted = (f"partition={PARTITION % 0}", f"methods=[{', '.join(methods)}]", *overrides)
    return set_up(small_run.config(tmp_path, *wanted)).simulations


def astraea(name, options):
    return f"{{recipe: astraea, name: {name}, size: 2, {options}}}"


@pytest.mark.slow
def test_methods_that_copy_alike_train_on_one_federation(tmp_path):
    plain, one, same, more, other = made(
        tmp_path,
        (
            "{recipe: fedavg}",
            astraea("one", "alpha: 0.67"),
            astraea("same", "alpha: 0.67, mediator_epochs: 1"),
            astraea("more", "alpha: 1.0"),
            astraea("other", f"alpha: 0.67, partition: {PARTITION % 1}"),
        ),
    )
    assert one.federation is same.federation
    assert len({id(sim.federation) for sim in (plain, one, more, other)}) == 4
    assert plain.federation.class_counts.sum() == 200 < one.federation.class_counts.sum()


@part
class Brighter(Part):
    """Adds the sum of its numbers to every pixel."""

    amounts: np.ndarray

    def prepare_federation(self, federation):
        return federation._replace(images=federation.images + np.uint8(self.amounts.sum()))


def test_parts_with_large_arrays_share_a_federation_only_if_all_numbers_are_equal():
    workshop = SharedInputs(None, None)
    plain = federate(np.zeros((4, 2, 2, 1), np.uint8), np.arange(4) % 2, [np.arange(4)], 2)
    dark, bright = np.zeros(2000), np.eye(2000)[1000]
    assert repr(Brighter(dark)) == repr(Brighter(bright))  # numpy leaves out the middle
    made = [workshop.enlarged(plain, Recipe("own", (Brighter(own.copy()),))) for own in (dark, dark, bright)]
    assert made[0] is made[1]
    assert [own.images.max() for own in made] == [0, 0, 1]


def test_a_wrong_option_of_a_selector_is_said_to_stand_in_selection(tmp_path):
    wrong = "selection={name: power_of_choice, clients_per_round: 4, candidates: 2}"
    with pytest.raises(SetupError, match=r"selection \(of fedavg\): candidates: received 2"):
        made(tmp_path, ("{recipe: fedavg}",), wrong)
    other = "selection={name: round_robin, clients_per_round: 4}"
    with pytest.raises(SetupError, match=r"selector: received 'round_robin' together with the recipe"):
        made(tmp_path, ("{recipe: flcir}",), other, "auxiliary={per_class: 2}")


def test_methods_with_other_classes_are_refused(tmp_path):
    other = "{recipe: fedavg, name: other, dataset: {classes: 3}, partition: {scheme: iid}}"
    with pytest.raises(SetupError, match=r"of other\): received 3 classes \('0, 1, 2'\), but fedavg has 10 .*separate"):
        made(tmp_path, ("{recipe: fedavg}", other), "dataset={name: synthetic, rows: 100}", "partition={scheme: iid}")


def _traced(tmp_path, text):
    (tmp_path / "phones.csv").write_text(text)
    wanted = ("methods=[{recipe: fedavg}, {recipe: fedprox, delivery: {name: always}}]", "training.batch_size=7")
    file = tmp_path / "small.yaml"
    file.write_text(small_run.TEXT.replace("{name: bernoulli, p: 0.8}", "{name: trace, file: phones.csv}"))
    return set_up(load_config(file, wanted))


def test_a_trace_is_found_beside_its_configuration_and_belongs_to_the_run(tmp_path):
    first = _traced(tmp_path, "round,client\n0,1\n0,4\n1,2\n")
    simulation = first.simulations[0]
    arriving = simulation.participation.delivery.mask(0, "delivery", 2, np.ones(10, bool))
    assert np.flatnonzero(arriving).tolist() == [1, 4]
    same, other = _traced(tmp_path, "round,client\n1,2\n0,4\n0,1\n"), _traced(tmp_path, "round,client\n0,1\n1,2\n")
    prints = [[fingerprint.tobytes() for fingerprint in made.fingerprints] for made in (first, same, other)]
    assert prints[0] == prints[1]
    assert prints[0][0] != prints[2][0]  # what fedavg runs with has changed
    assert prints[0][1] == prints[2][1]  # fedprox doesn't read the file
    assert prints[0][0] != prints[0][1]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("delivery={name: trace, file: no.csv}", r"delivery \(of fedavg\): .*/no.csv: .*No such file"),
        ("delivery={name: trace, file: eleven.csv}", r"methods.0 \(fedavg\): delivery: .*eleven.csv: names client 10"),
        ("speed={name: uniform, low: 2, high: 1}", r"speed \(of fedavg\): high: received 1"),
        (
            "speed={name: file, file: eleven.csv}",
            r"speed \(of fedavg\): .*eleven.csv: its first line is 'round",
        ),
    ],
)
def test_files_and_speeds_that_do_not_fit_are_said_to_stand_where_they_do(tmp_path, monkeypatch, override, message):
    monkeypatch.chdir(tmp_path)  # where paths on the command line begin
    (tmp_path / "eleven.csv").write_text("round,client\n0,10\n")
    with pytest.raises(SetupError, match=message):
        set_up(small_run.config(tmp_path, "methods=[{recipe: fedavg}]", override))


@pytest.mark.slow
def test_speeds_and_steps_of_a_configuration_reach_the_simulation(tmp_path):
    changes = (
        "training.local_epochs=null", "training.local_steps=9", "methods=[{recipe: fedavg}]",
        "training.optimizer.schedule={name: step, every: 2, factor: 0.5}",
        "training.optimizer.step_schedule={name: exponential, factor: 0.9}", "training.optimizer.clip_norm=3",
        "speed={name: lognormal, median: 2, sigma: 0.001, deadline: 3.5, late: drop}",
    )  # fmt: skip
    (simulation,) = set_up(small_run.config(tmp_path, *changes)).simulations
    local = simulation.setting.local.optimizer
    assert simulation.setting.local_steps(40) == 9
    assert (float(local.rate_at(5, 2)), local.clip_norm) == (pytest.approx(0.05 * 0.25 * 0.81), 3.0)
    speed = simulation.participation.speed
    assert (speed.numbers, speed.deadline, speed.late) == ((2.0, 0.001), 3.5, "drop")
    assert not simulation.plan(0, 0, ())[0].delivered.any()  # 9 steps take about 4.5 seconds


def test_options_of_models_reach_them(tmp_path):
    wider = "{recipe: fedavg, name: wider, model: {hidden: [32, 16]}}"
    one, other = made(tmp_path, ("{recipe: fedavg}", wider))
    params = [
        jax.tree.map(np.shape, jax.eval_shape(sim.setting.model.init, jax.random.key(0)).params) for sim in (one, other)
    ]
    assert params[0]["body"]["dense_0"]["dense"]["kernel"] == (784, 64)
    assert params[1]["body"]["dense_1"]["dense"]["kernel"] == (32, 16)
