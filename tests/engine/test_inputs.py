"""Inputs that are no images: feature vectors and token ids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding import FORMULA, STEPS, SUM

from fedjax_bal import LocalTraining, Participation, data, models, optimizer, recipes, simulate
from fedjax_bal.methods.prototypes import num_features
from fedjax_bal.types import Model, Outputs, Variables

WORDS, LENGTH, CLASSES = 11, 6, 3
RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(CLASSES), 10)
IDS = RNG.integers(0, WORDS - CLASSES, (30, LENGTH)) + LABELS[:, None]
COUNTS = np.eye(WORDS)[IDS].mean(1)
ROWS = np.split(RNG.permutation(30), [12, 20])


def bag_of_words(of_ids):
    """The mean of words' vectors and a linear layer; of ids, or of the words' shares."""

    def init(key):
        first, second = jax.random.split(key)
        table, head = jax.random.normal(first, (WORDS, 4)), jax.random.normal(second, (4, CLASSES))
        return Variables({"table": table, "head": head}, {})

    def apply(variables, inputs, *, train, key=None, real=None):
        table = variables.params["table"]
        assert inputs.dtype == (jnp.int32 if of_ids else jnp.float32)
        features = table[inputs].mean(1) if of_ids else inputs @ table
        return Outputs(features @ variables.params["head"], features), variables

    shape, dtype = ((LENGTH,), "int32") if of_ids else ((WORDS,), "float32")
    return Model(init, apply, lambda params, x: x @ params["head"], "words", CLASSES, shape, input_dtype=dtype)


def trained(model, inputs, **options):
    federation = data.federate(inputs, LABELS, ROWS, CLASSES, **options)
    return simulate(
        recipes.fedavg(), model, federation, (inputs, LABELS), rounds=3, seed=1,
        local=LocalTraining(batch_size=4, optimizer=optimizer("sgd", 0.5)),
        participation=Participation(clients_per_round=2),
    )  # fmt: skip


@pytest.mark.slow
def test_token_ids_reach_the_model_as_they_are():
    ids, shares = trained(bag_of_words(True), IDS), trained(bag_of_words(False), COUNTS)
    for own, same in zip(jax.tree.leaves(ids.variables), jax.tree.leaves(shares.variables), strict=True):
        np.testing.assert_allclose(own, same, rtol=STEPS, atol=SUM)
    assert ids.history[-1]["test_accuracy"] == pytest.approx(shares.history[-1]["test_accuracy"], abs=FORMULA)


@pytest.mark.slow
def test_a_vector_trains_as_the_image_of_one_row_does():
    vectors = trained(models.build("mlp", CLASSES, (WORDS,), hidden=(5,)), COUNTS, mean=0.1, std=0.5)
    images = trained(
        models.build("mlp", CLASSES, (1, WORDS, 1), hidden=(5,)), COUNTS[:, None, :, None], mean=0.1, std=0.5
    )
    for own, same in zip(jax.tree.leaves(vectors.variables), jax.tree.leaves(images.variables), strict=True):
        np.testing.assert_array_equal(own, same)


def test_a_part_that_measures_the_model_gives_it_ids():
    model = bag_of_words(True)
    assert num_features(model, model.init(jax.random.key(0))) == 4


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (bag_of_words(True), np.zeros((30, LENGTH)), "inputs of type float32"),
        (models.build("mlp", CLASSES, (LENGTH,)), IDS, "type int32"),
        (models.build("mlp", CLASSES, (LENGTH,)), IDS, "or use a model for token ids, such as text_mean"),
        (
            models.build("text_mean", CLASSES, (LENGTH,), vocabulary=9),
            IDS,
            r"ids from 0 to 9, but the model text_mean has a vocabulary of 9 \(0 to 8\): .* vocabulary=10 or more",
        ),
        (models.build("text_mean", CLASSES, (LENGTH,)), IDS - 1, "holds -1; expected token ids of 0 or above"),
        (models.build("mlp", CLASSES, (4,)), IDS / 2, r"images of shape \(6,\), but .* was built for \(4,\)"),
    ],
)
def test_a_model_of_other_inputs_is_refused(model, inputs, message):
    with pytest.raises(ValueError, match=message):
        trained(model, inputs)


def test_ids_of_the_test_set_are_within_the_vocabulary_too():
    federation = data.federate(IDS, LABELS, ROWS, CLASSES)
    model = models.build("text_mean", CLASSES, (LENGTH,), vocabulary=WORDS)
    with pytest.raises(ValueError, match=rf"test set: received token ids from 2 to {WORDS}, but"):
        simulate(recipes.fedavg(), model, federation, (IDS + 2, LABELS), rounds=1, seed=0)


def test_only_images_are_cropped_augmented_and_imitated():
    federation = data.federate(IDS / 2, LABELS, ROWS, CLASSES)
    with pytest.raises(ValueError, match=r"augment: received inputs of shape \(6,\) and type float32"):
        data.augment(federation, np.ones(CLASSES, int))
    model, test = models.build("mlp", CLASSES, (LENGTH,)), (IDS / 2, LABELS)
    for recipe, message in (
        (recipes.combine(recipes.fedavg(), recipes.crop_flip()), "crops: received inputs of shape"),
        (recipes.cbfl(gamma=0.0, warm_up=0), r"image_shape: received \(6,\), must be \(height, width, channels\)"),
    ):
        with pytest.raises(ValueError, match=message):
            simulate(recipe, model, federation, test, rounds=1, seed=0)
    with pytest.raises(ValueError, match="ids have no fakes"):
        tokens = data.federate(IDS, LABELS, ROWS, CLASSES)
        simulate(
            recipes.cbfl(generator="gaussian", warm_up=0), bag_of_words(True), tokens, (IDS, LABELS), rounds=1, seed=0
        )
