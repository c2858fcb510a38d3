"""IWDS: against its transcription, and its schedules."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import toys
from methods import float64

from fedjax_bal.engine.device import purpose_key, training_key
from fedjax_bal.engine.device.drawing import weighted
from fedjax_bal.options import LocalTraining
from fedjax_bal.recipes import balanced_softmax, class_balanced, combine, fedlmd, fedrela, fedyoyo, iwds

pytestmark = pytest.mark.usefixtures("double")


def sample_weights(counts, beta):
    """(1 - beta) / (1 - beta^n), 1 where there is none."""
    return np.array([(1 - beta) / (1 - beta ** int(n)) if n else 1.0 for n in counts])


def batches(client, number):
    """The library's draws from the transcription's weights: as many an epoch as the client has rows."""
    data, options, beta = toys.federation(), float64.OPTIONS, 0.3 + (0.99 - 0.3) * 0.5**number
    first, size, counts = data.offsets[client], toys.SIZES[client], data.class_counts[client]
    key = training_key(jax.random.key(float64.SEED), number, client, 0)
    law = jnp.asarray(np.log(sample_weights(counts, beta)))
    for epoch in range(options.epochs):
        draw = purpose_key(jax.random.fold_in(key, epoch), "draw")
        order = np.asarray(weighted(draw, jnp.asarray(counts), law, float64.LENGTH))[:size]
        for start in range(0, size, options.batch_size):
            yield data.rows[first + order[start : start + options.batch_size]]


@pytest.mark.slow
def test_iwds_equals_its_transcription():
    float64.assert_averages(iwds(beta_0=0.99, beta_m=0.3, rho=0.5), batches=batches)


@pytest.mark.parametrize(("schedule", "beta"), [("decay", 0.8 + 0.1999 * 0.992**7), ("fixed", 0.9999), ("uniform", 0)])
def test_schedules_weigh_samples_by_the_beta_of_the_round(schedule, beta):
    counts = jnp.array([4500, 0, 56, 1])
    (part,) = iwds(schedule=schedule).parts
    got = part.log_weights(counts, SimpleNamespace(round=jnp.int32(7)))
    np.testing.assert_allclose(np.exp(got), sample_weights(counts, beta), rtol=1e-9)


DRAWN = {recipe.name: recipe for recipe in (class_balanced(), balanced_softmax(), fedlmd(), fedyoyo())}


@pytest.mark.parametrize("name", quick.only(DRAWN, "class_balanced"))
def test_of_classes_drawn_as_they_are_a_loss_corrects_for_the_rows(name):
    other = DRAWN[name]
    replacement = dataclasses.replace(float64.LOCAL, drawing="replacement")
    float64.assert_same_runs(combine(other, iwds(schedule="uniform")), other, local=replacement)


def test_of_classes_drawn_equally_often_a_loss_has_nothing_to_correct():
    balanced = iwds(beta_0=1.0, schedule="fixed")
    float64.assert_same_runs(combine(class_balanced(), balanced), balanced)


def test_it_needs_replacement():
    with pytest.raises(ValueError, match="received 'epochs'"):
        float64.simulation(iwds(), local=LocalTraining(drawing="epochs"))


def test_rows_whose_labels_change_are_refused():
    with pytest.raises(ValueError, match="fedrela: received DecayedResampling, which weighs rows by the labels that"):
        float64.simulation(combine(iwds(), fedrela()))
