"""The types that are exchanged: programs with them as arguments and results can be written to a file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rounding import FORMULA, SUM

from fedjax_bal import LocalTraining, Participation, data, make_round, models, recipes

pytest.importorskip("flatbuffers")


def through_a_file(function, *arguments):
    exported = jax.export.export(jax.jit(function))(*arguments)
    return jax.export.deserialize(bytearray(exported.serialize()))


def test_a_program_of_a_models_variables_and_outputs_goes_through_a_file():
    model = models.build("mlp", 3, (4,), hidden=[5])
    variables, rows = model.init(jax.random.key(0)), jnp.ones((2, 4))
    apply = lambda variables, rows: model.apply(variables, rows, train=False)
    read = through_a_file(apply, variables, rows)
    jax.tree.map(np.testing.assert_array_equal, read.call(variables, rows), jax.jit(apply)(variables, rows))


@pytest.mark.slow
def test_a_round_goes_through_a_file():
    # As a user does with the types of an optimizer that isn't this package's.
    jax.export.register_namedtuple_serialization(optax.EmptyState, serialized_name="optax.EmptyState")
    labels = np.arange(12) % 3
    rows = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    federation = data.federate(rows, labels, np.arange(12).reshape(3, 4), 3)
    model = models.build("mlp", 3, (4,), hidden=[5])
    step = make_round(
        recipes.scaffold(),
        model,
        federation,
        local=LocalTraining(batch_size=4),
        participation=Participation(clients_per_round=2),
    )
    key = jax.random.key(0)
    given = step.hyperparameters, key, step.init(key), (np.array([[0], [2]]), np.ones((2, 1), bool))
    read = through_a_file(step.step, *given)
    got, wanted = read.call(*given), jax.jit(step.step)(*given)
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=SUM, atol=FORMULA), got, wanted)
