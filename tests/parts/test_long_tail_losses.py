"""Losses of long-tailed learning: against their transcriptions, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from parts import hand
from quick import only

from fedjax_bal import models
from fedjax_bal.methods.ratio_loss import ratios
from fedjax_bal.parts import (
    BALANCED,
    ClassBalancedLoss,
    Disentangling,
    FocalLoss,
    LabelMargins,
    PriorCalibration,
    RatioLoss,
)
from fedjax_bal.recipes import balanced_softmax, class_balanced, combine, focal, ldam, logit_adjustment
from fedjax_bal.types import Outputs, ServerContext, Variables

pytestmark = pytest.mark.usefixtures("double")


LOGITS = hand.draw(hand.ROWS, hand.CLASSES)
OF_ALL = toys.federation().class_counts.sum(0)
SCOPES = {"local": hand.COUNTS, "global": OF_ALL}


def cross_entropy(logits, labels=hand.LABELS):
    """Of each row, with plain loops."""
    return np.array([np.log(np.exp(row).sum()) - row[label] for row, label in zip(logits, labels, strict=True)])


def test_counts_of_the_client_and_of_all_are_different():
    assert (OF_ALL > 0).all() and not (hand.COUNTS > 0).all()


@pytest.mark.parametrize("beta", only((0.0, 0.9, 1.0), 0.9))
@pytest.mark.parametrize("scope", SCOPES)
def test_class_balanced_loss_equals_its_transcription(scope, beta):
    def transcription(logits):
        weights = {}
        for c, n in enumerate(SCOPES[scope]):
            if n:
                weights[c] = 1 / n if beta == 1 else (1 - beta) / (1 - beta**n)
        mean = sum(weights.values()) / len(weights)
        own = np.array([weights[label] / mean for label in hand.LABELS])
        return (own * cross_entropy(logits)).sum()

    part = ClassBalancedLoss(beta, scope)
    hand.check(lambda z: part.losses(z, jnp.array(hand.LABELS), hand.context()), transcription, LOGITS)
    if beta == 0:
        np.testing.assert_allclose(transcription(LOGITS), cross_entropy(LOGITS).sum(), rtol=1e-12)


@pytest.mark.parametrize("gamma", only((0.0, 0.5, 2.0), 2.0))
def test_focal_loss_equals_its_transcription(gamma):
    def transcription(logits):
        chosen = np.exp(-cross_entropy(logits))
        return ((1 - chosen) ** gamma * cross_entropy(logits)).sum()

    hand.check(lambda z: FocalLoss(gamma).losses(z, jnp.array(hand.LABELS), None), transcription, LOGITS)
    sure = lambda logits: FocalLoss(0.5).losses(logits, jnp.zeros(1, int), None).sum()
    assert np.isfinite(jax.grad(sure)(jnp.array([[800.0, 0, 0, 0]]))).all()


@pytest.mark.parametrize("scope", SCOPES)
def test_logit_adjustment_equals_its_transcription(scope):
    def transcription(logits):
        prior = 0.9 * SCOPES[scope] / SCOPES[scope].sum() + 0.1 / hand.CLASSES
        return cross_entropy(logits + 1.7 * np.log(prior)).sum()

    part = PriorCalibration(0.1, 1.7, scope)

    def loss(logits):
        adjusted = part.logits(logits, hand.batch(), hand.context())
        return -jax.nn.log_softmax(adjusted)[jnp.arange(hand.ROWS), hand.LABELS]

    hand.check(loss, transcription, LOGITS)


def test_logit_adjustment_of_strength_1_is_balanced_softmax_and_refused_beside_it():
    assert logit_adjustment().parts == balanced_softmax().parts
    with pytest.raises(ValueError, match="balanced_softmax and logit_adjustment both bring PriorCalibration"):
        combine(balanced_softmax(), logit_adjustment())


@pytest.mark.parametrize("scope", SCOPES)
def test_margins_of_ldam_equal_their_transcription(scope):
    counts = SCOPES[scope]

    def transcription(logits):
        margins = [0.0 if n == 0 else n**-0.25 for n in counts]
        moved = logits.copy()
        for row, label in enumerate(hand.LABELS):
            moved[row, label] -= 8 * 0.4 * margins[label] / max(margins)
        return cross_entropy(moved).sum()

    part = LabelMargins(0.4, 8.0, scope)

    def loss(logits):
        return -jax.nn.log_softmax(part.logits(logits, hand.batch(), hand.context()))[jnp.arange(7), hand.LABELS]

    hand.check(loss, transcription, LOGITS)


def test_deferred_weights_are_those_of_the_class_balanced_loss():
    margins, weights = ldam(reweight_from=7, beta=0.9, counts="global").parts
    assert (margins.first_round, weights.first_round) == (0, 7)
    assert weights == ClassBalancedLoss(0.9, "global", 7)
    assert class_balanced(0.9).parts[0].first_round == 0


@pytest.mark.parametrize("scope", SCOPES)
def test_lade_equals_its_transcription(scope):
    def transcription(logits):
        prior, total, real = SCOPES[scope] / SCOPES[scope].sum(), 0.0, np.flatnonzero(hand.REAL)
        for c in range(hand.CLASSES):
            own = [logits[row, c] for row in real if hand.LABELS[row] == c]
            even = [logits[row, c] - np.log(prior[c] + 1e-9) + np.log(1 / hand.CLASSES + 1e-9) for row in real]
            second = np.log(np.mean(np.exp(even)))
            first = np.sum(own) / len(own) if own else 0.0
            total -= prior[c] * (first - second - 0.3 * second**2)
        return 0.7 * total

    part = Disentangling(0.7, 0.3, scope)
    hand.check(lambda z: part.loss(hand.outputs(z), hand.batch(), None, hand.context()), transcription, LOGITS, 1e-9)


def test_a_batch_of_padding_adds_nothing_to_lade():
    padding = hand.batch()._replace(real=jnp.zeros(hand.ROWS, bool))
    loss = lambda z: Disentangling().loss(hand.outputs(z), padding, None, hand.context())
    value, gradient = hand.value_and_gradient(loss, LOGITS)
    assert value == 0 and not gradient.any()


# The monitor of ratio loss.


def monitor(steps):
    """Ratios with plain loops, as the authors' code has them."""
    classes, places = steps.shape
    owner = []
    for j in range(places):
        column = list(steps[:, j])
        top = column.index(max(column))
        near = [v == 0 for v in column] if column[top] == 0 else [abs(v) / abs(column[top]) > 0.8 for v in column]
        owner.append(top if sum(near) < 2 else None)
    found = []
    for c in range(classes):
        own = sum(steps[c, j] for j in range(places) if owner[j] == c)
        other = sum(np.delete(steps[:, j], c).mean() for j in range(places) if owner[j] == c)
        found.append(min(abs(own) / abs(other) if other != 0 else 10.0, 5000.0))
    return np.array(found)


@pytest.mark.parametrize("seed", range(5))
def test_ratios_equal_their_transcription(seed):
    steps = hand.draw(4, 30, seed=seed)
    steps[:, :5] = 0.0
    steps[1, 5:8] = 0.0
    steps[:, 8] = -np.abs(steps[:, 8])
    np.testing.assert_allclose(ratios(jnp.asarray(steps)), monitor(steps), rtol=1e-9)


def test_a_class_that_owns_no_weight_has_the_value_of_the_authors_code():
    found = ratios(jnp.array([[1.0, 1.0], [0.1, 0.1], [0.0, -0.2]]))
    np.testing.assert_allclose(found[1:], [10, 10])


@pytest.mark.slow
def test_the_server_monitors_the_gradient_of_each_class():
    federation = toys.federation()._replace(auxiliary={BALANCED: np.arange(40)})
    params = {"head": {"kernel": hand.draw(5, 4), "bias": hand.draw(4)}}
    apply = lambda v, images, train: (Outputs(None, images.reshape(len(images), -1)), v)
    head = lambda p, features: features @ p["head"]["kernel"] + p["head"]["bias"]
    model = toys.network()._replace(apply=apply, head=head)
    filled = dict.fromkeys(ServerContext._fields) | {
        "variables": Variables(params, {}), "model": model, "federation": jax.tree.map(jnp.asarray, federation),
        "state": jnp.array([1.0, 2.0, 3.0, 4.0]),
    }  # fmt: skip
    after, sent = RatioLoss(0.5, 0.2).broadcast(None, ServerContext(**filled))
    images, labels = federation.images[:40].reshape(40, -1).astype(float), federation.labels[:40]
    steps = []
    for c in range(4):
        own = images[labels == c]
        logits = own @ params["head"]["kernel"] + params["head"]["bias"]
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        steps.append((-(own.T @ (shares - np.eye(4)[c])) / len(own)).ravel())
    np.testing.assert_allclose(after, 0.5 + 0.2 * monitor(np.array(steps)), rtol=1e-6)
    np.testing.assert_array_equal(sent, [1, 2, 3, 4])  # clients get the weights of the round before
    ctx = hand.context(broadcast={"RatioLoss": sent})
    losses = RatioLoss().losses(jnp.asarray(LOGITS), jnp.array(hand.LABELS), ctx)
    np.testing.assert_allclose(losses, (hand.LABELS + 1) * cross_entropy(LOGITS), rtol=1e-12)


# The classifier of cosines.


@pytest.mark.slow
def test_a_classifier_of_cosines_equals_its_transcription():
    below = models.build("mlp", 4, (1, 5, 1), hidden=(6,))
    model = models.with_cosine_head(below, "trained", 8.0)
    assert model is models.with_cosine_head(below, "trained", 8.0)
    variables = model.init(jax.random.key(0))
    images = jnp.asarray(hand.draw(3, 1, 5, 1))
    assert images.dtype == float and variables.params["head"]["kernel"].dtype == np.float32  # narrowed, without a word
    outputs, after = model.apply(variables, images, train=True)
    features, kernel = np.asarray(outputs.features), np.asarray(variables.params["head"]["kernel"])
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), 1, rtol=1e-6)
    wanted = [[8 * f @ k / np.linalg.norm(f) / np.linalg.norm(k) for k in kernel.T] for f in features]
    np.testing.assert_allclose(outputs.logits, wanted, rtol=1e-6)
    np.testing.assert_allclose(model.head(variables.params, outputs.features), wanted, rtol=1e-6)
    assert jax.tree.structure(after) == jax.tree.structure(variables)
    assert "body" in after.params and after.params["body"].keys() == below.init(jax.random.key(0)).params["body"].keys()
    zero = jax.grad(lambda f: model.head(variables.params, f).sum())(jnp.zeros((1, 6)))
    assert not np.asarray(zero).any()  # a dead row has no direction, and no gradient of one


def test_a_network_without_a_named_classifier_is_refused():
    with pytest.raises(ValueError, match=r"model: received toy with parameters \['w1', 'w2'\], must have"):
        models.with_cosine_head(toys.network(), "trained", 8.0)


def test_two_classifiers_of_cosines_are_refused():
    once = models.with_cosine_head(models.build("mlp", 2, (4, 4, 1)), "trained", 8.0)
    with pytest.raises(ValueError, match=r"received mlp with a classifier of cosines already; of methods .* take one"):
        models.with_cosine_head(once, "simplex", 1.0)


def test_two_criteria_are_refused():
    with pytest.raises(ValueError, match="FocalLoss and ClassBalancedLoss both replace the cross-entropy"):
        combine(focal(), class_balanced())
