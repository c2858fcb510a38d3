"""Options are declared once: what the engine knows of them, and the configuration, agrees with their declaration."""

import dataclasses
import subprocess
import sys
import typing

import numpy as np
import pytest
import toys

from fedjax_bal import Evaluation, Execution, LocalTraining, Participation, recipes, simulate
from fedjax_bal.config.schema import EvaluationSection, ExecutionSection
from fedjax_bal.engine.device.setting import matmul_precision
from fedjax_bal.parts import BATCH_STATISTICS

KINDS = (LocalTraining, Participation, Evaluation, Execution)


def words(kind, name):
    """The texts that an option may be."""
    (field,) = (field for field in dataclasses.fields(kind) if field.name == name)
    return typing.get_args(field.type)


def test_the_engine_knows_every_name_of_an_option_and_no_other():
    assert words(LocalTraining, "batch_statistics") == tuple(BATCH_STATISTICS)
    assert len({matmul_precision(name) for name in words(Execution, "precision")}) == 3


def test_sections_come_to_the_options_that_python_has_by_default():
    assert ExecutionSection().options == Execution()
    assert EvaluationSection().options == Evaluation()


def test_no_name_is_an_option_of_two_objects():
    names = [field.name for kind in KINDS for field in dataclasses.fields(kind)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalTraining(epochs=2, steps=3), "steps: received 3 together with epochs=2"),
        (lambda: LocalTraining(batch_size=True), "batch_size: received True"),
        (lambda: LocalTraining(drawing="epoch"), "drawing: .* did you mean 'epochs'. allowed: epochs, replacement"),
        (lambda: Participation(clients_per_round=0), "clients_per_round: received 0"),
        (
            lambda: Execution(devices="all"),
            "execution.devices: received 'all'",
        ),
        (lambda: Execution(clip_factor=1e-50), "clip_factor: received 1e-50"),
    ],
)
def test_a_value_out_of_range_is_refused_where_it_is_given(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_whole_numbers_of_other_types_become_integers():
    options = LocalTraining(batch_size=np.int64(8), epochs=2.0, steps=None)
    assert (options.batch_size, options.epochs, options.steps) == (8, 2, None)
    assert type(options.batch_size) is type(options.epochs) is int


@pytest.mark.parametrize("kind", KINDS)
def test_options_that_are_no_object_of_their_kind_are_refused(kind):
    name = {LocalTraining: "local"}.get(kind, kind.__name__.lower())
    given = recipes.fedavg(), toys.network(), toys.federation(), toys.test_set()
    with pytest.raises(ValueError, match=rf"^{name}: received {{}}, must be a fedjax_bal.{kind.__name__}$"):
        simulate(*given, rounds=1, seed=0, **{name: {}})


@pytest.mark.slow
def test_options_are_imported_without_jax():
    code = "import sys, fedjax_bal.options; assert not {'jax', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
