"""The checks of models: the package's own pass, and each fault is found by the check that is for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from jax.custom_batching import custom_vmap

from fedjax_bal import check_model
from fedjax_bal.models import MODELS, build
from fedjax_bal.testing import ConformanceError
from fedjax_bal.testing.model_battery import STAGES

CHECKS = [check.__name__.replace("_", " ") for stage in STAGES for check in stage]
GOOD = build("tiny_bn", 3, (4, 4, 1))


def with_apply(change):
    """A model with something done to what it returns, by `change(outputs, after, variables, images, train, real)`."""

    def apply(variables, images, *, train, key=None, real=None):
        outputs, after = GOOD.apply(variables, images, train=train, key=key, real=real)
        return change(outputs, after, variables, images, train, real)

    return GOOD._replace(apply=apply)


def with_logits(change):
    return with_apply(lambda outputs, after, *_: (outputs._replace(logits=change(outputs.logits)), after))


def drawing(key):
    variables = GOOD.init(key)
    return variables._replace(params=jax.tree.map(lambda leaf: leaf + np.random.normal(), variables.params))


def ignoring(outputs, after, variables, images, train, real):
    return GOOD.apply(variables, images, train=train)


def moving(outputs, after, variables, images, train, real):
    return outputs, after._replace(stats=jax.tree.map(lambda leaf: leaf + 1, after.stats))


def stepping(outputs, after, variables, images, train, real):
    return outputs, after._replace(params=jax.tree.map(lambda leaf: leaf * (0.9 if train else 1.0), after.params))


def decaying(outputs, after, variables, images, train, real):
    return outputs, after._replace(stats=jax.tree.map(lambda leaf: leaf * (0.9 if train else 1.0), after.stats))


def swapped(outputs, after, *_):
    ((mean, variance),) = outputs.norm_inputs
    return outputs._replace(norm_inputs=((variance, mean),)), after


@custom_vmap
def alone(values):
    return values


@alone.def_vmap
def together(size, batched, values):
    return 2 * values, True


@jax.custom_vjp
def doubled_beside_others(values):
    return alone(values)


doubled_beside_others.defvjp(lambda values: (alone(values), None), lambda _, gradient: (gradient,))


def with_endless_gradient(logits):
    return logits + jnp.sqrt(0 * logits)


def never_training(variables, images, *, train, key=None, real=None):
    return GOOD.apply(variables, images, train=False)


FAULTS = {
    "switches": GOOD._replace(apply=never_training),
    "shapes": with_apply(lambda outputs, after, *_: (outputs._replace(features=outputs.features[0]), after)),
    "classifier": GOOD._replace(head=lambda params, features: GOOD.head(params, features) + 1),
    "initialization": GOOD._replace(init=drawing),
    "evaluation": with_apply(moving),
    "training": with_apply(stepping),
    "running statistics": with_apply(lambda outputs, after, variables, *_: (outputs, variables)),
    "padded rows": with_apply(ignoring),
    "no real rows": with_apply(decaying),
    "normalised inputs": with_apply(swapped),
    "dropout": with_logits(lambda logits: logits + np.random.normal()),
    "gradients": with_logits(with_endless_gradient),
    "several clients": with_logits(doubled_beside_others),
}


@pytest.mark.parametrize("name", quick.only(CHECKS, "shapes", "gradients", "several clients"))
def test_each_check_finds_its_fault(name):
    with pytest.raises(ConformanceError) as error:
        check_model(FAULTS[name])
    assert name in error.value.report.failed
    assert "received" in str(error.value)


def test_what_a_model_lacks_is_skipped_and_the_rest_passes():
    report = check_model(GOOD)
    assert report.failed == () and report.skipped == ("dropout",)
    assert report.passed == tuple(name for name in CHECKS if name != "dropout")


def test_an_exception_is_shown_with_its_place():
    def apply(variables, images, *, train, key=None, real=None):
        raise KeyError("no such layer")

    with pytest.raises(ConformanceError, match=r"KeyError \(in .*apply, .*test_model_battery.py:\d+\)"):
        check_model(GOOD._replace(apply=apply))


def test_inputs_have_the_models_shape():
    with pytest.raises(ValueError, match=r"images: received shape \(2, 4\)"):
        check_model(GOOD, images=np.zeros((2, 4)))


@pytest.mark.slow
def test_a_model_of_token_ids_is_given_ids():
    assert check_model(build("text_mean", 3, (5,), vocabulary=20, embedding=3, hidden=4)).failed == ()


LARGE = ("creff_resnet8", "mobilenetv2", "resnet18", "resnet18_cifar", "resnet20")
"""Half of the time; of their layers the smaller ones are made, too."""
SMALL = [name for name in MODELS if name not in LARGE]


@pytest.mark.parametrize("name", [*quick.only(SMALL, "mlp"), *quick.only(LARGE, others=pytest.mark.nightly)])
def test_every_model_passes(name):
    side = 32 if name in {"resnet18", "flcir_cnn"} else 16
    assert check_model(build(name, 3, (side, side, 3)), tolerance=1e-3).failed == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", quick.only(["resnet8", "mobilenetv2"], "resnet8", others=pytest.mark.nightly))
def test_group_normalisation_passes_and_has_no_statistics(name):
    report = check_model(build(name, 3, (8, 8, 3), norm="group"), tolerance=1e-3)
    assert report.failed == () and "running statistics" in report.skipped
