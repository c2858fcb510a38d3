"""From a configuration to simulations: what methods share, and where a wrong value is said to stand."""

import pytest
import small_run

from fedjax_bal.experiment.setup import SetupError, set_up

PARTITION = "{scheme: astraea, variant: LTRF2, clients: 10, total: 200, seed: %d}"


def made(tmp_path, methods, *overrides):
    wanted = (f"partition={PARTITION % 0}", f"methods=[{', '.join(methods)}]", *overrides)
    return set_up(small_run.config(tmp_path, *wanted)).simulations


def astraea(name, options):
    return f"{{recipe: astraea, name: {name}, size: 2, {options}}}"


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


def test_a_wrong_option_of_a_selector_is_said_to_stand_in_selection(tmp_path):
    wrong = "selection={name: power_of_choice, clients_per_round: 4, candidates: 2}"
    with pytest.raises(SetupError, match=r"selection \(of fedavg\): candidates: received 2"):
        made(tmp_path, ("{recipe: fedavg}",), wrong)
    other = "selection={name: round_robin, clients_per_round: 4}"
    with pytest.raises(SetupError, match=r"methods.0 \(flcir\): selector: received 'round_robin' beside the recipe"):
        made(tmp_path, ("{recipe: flcir}",), other, "auxiliary={per_class: 2}")
