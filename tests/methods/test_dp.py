"""Differential privacy: clipping and noise against NumPy, and what is refused and reported."""

import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding import SUM

from fedjax_bal import Execution, Participation, data, models, recipes, simulate
from fedjax_bal.config import ConfigError, load_config
from fedjax_bal.methods import dp as MODULE
from fedjax_bal.optim import optimizer
from fedjax_bal.parts import NeedsContext, PrivateMean, RoundsSoFar, check_needs
from fedjax_bal.selection import bernoulli

SERVER = SimpleNamespace(key=jax.random.key(0))


def deltas(clients, size):
    rng = np.random.default_rng(0)
    return {"a": rng.normal(size=(clients, size)), "b": rng.normal(size=(clients, 2, 3))}


def test_updates_are_clipped_and_count_alike():
    own = deltas(4, 5)
    own["a"][1], own["b"][1], own["a"][3] = 0.01, 0.01, np.nan
    norms = np.sqrt((own["a"] ** 2).sum(1) + (own["b"] ** 2).sum((1, 2)))
    mean = jax.jit(lambda own, shares: PrivateMean(0.5, 0.0).reduce(own, shares, SERVER))
    got = mean(own, np.array([0.7, 0.2, 0.1, 0.0]))
    for name, leaf in own.items():
        clipped = [leaf[k] * min(1.0, 0.5 / norms[k]) for k in range(3)]  # the fourth doesn't deliver
        np.testing.assert_allclose(got[name], sum(clipped) / 3, rtol=SUM)


@pytest.mark.slow
def test_the_noise_has_its_scale_and_is_the_rounds_own():
    clients, zero = 8, {"a": jnp.zeros((8, 20_000)), "b": jnp.zeros((8, 100, 100))}
    shares, servers = jnp.ones(clients) / clients, [SimpleNamespace(key=jax.random.key(seed)) for seed in (0, 0, 1)]
    noise, again, other = (PrivateMean(0.5, 3.0).reduce(zero, shares, server) for server in servers)
    for name in noise:
        assert np.std(noise[name]) == pytest.approx(3.0 * 0.5 / clients, rel=0.03)
        assert abs(np.mean(noise[name])) < 5 * 3.0 * 0.5 / clients / 100
        assert np.array_equal(noise[name], again[name])
        assert not np.array_equal(noise[name], other[name])
    assert abs(np.corrcoef(noise["a"][:10_000], np.ravel(noise["b"]))[0, 1]) < 0.05


def run(recipe, model="mlp", **settings):
    rng = np.random.default_rng(0)
    labels = np.arange(40) % 2
    images = rng.integers(0, 256, (40, 8, 8, 1), dtype=np.uint8)
    federation = data.federate(images, labels, np.array_split(np.arange(40), 4), 2)
    built, settings = (
        models.build(model, 2, (8, 8, 1)),
        {"rounds": 1, "execution": Execution(strategy="map")} | settings,
    )
    return simulate(recipe, built, federation, (images, labels), seed=0, **settings).history


@pytest.mark.parametrize(
    ("with_", "model", "message"),
    [
        (recipes.scaffold(), "mlp", "dp: received ControlVariates, by which the server sees updates, reports"),
        (recipes.fedexp(), "mlp", "dp: received Extrapolation, by which"),
        (recipes.climb(), "mlp", "dp: received DualWeights, by which"),
        (recipes.fedavg(), "tiny_bn", "dp: received the model tiny_bn, whose batch statistics"),
        *(
            (getattr(recipes, name)(counts="global"), "mlp", f"dp: received {slot} with counts=global, .*set counts")
            for name, slot in (
                ("logit_adjustment", "PriorCalibration"),
                ("class_balanced", "ClassBalancedLoss"),
                ("ldam", "LabelMargins"),
                ("lade", "PriorCalibration"),
            )
        ),
        (recipes.astraea(size=1, mediator_epochs=1), "mlp", "dp: received Augmentation, by which other clients"),
        (recipes.flcir("random"), "mlp", "dp: received ParticipatingShare, by which other clients"),
        (recipes.fedcm(), "mlp", "dp: received ClientMomentum, by which other clients"),
    ],
)
def test_whatever_would_have_no_noise_is_refused(with_, model, message):
    with pytest.raises(ValueError, match=message):
        run(recipes.combine(recipes.dp(), with_), model)


def test_clipping_to_the_median_of_all_updates_is_refused():
    with pytest.raises(ValueError, match="dp: received execution.broken_clients: clip, .*set it to raise or exclude"):
        run(recipes.dp(), execution=Execution(broken_clients="clip"))
    clipped = ["methods=[dp]", "execution.broken_clients=clip"]
    with pytest.raises(ConfigError, match="methods.0: dp: received execution.broken_clients: clip"):
        load_config(None, clipped)
    assert load_config(None, ["methods=[dp]", "execution.broken_clients=exclude"])


def test_counts_of_the_client_itself_are_allowed():
    local = [recipes.logit_adjustment(), recipes.class_balanced(), recipes.ldam(), recipes.lade()]
    for with_ in local:
        context = NeedsContext((*recipes.dp().parts, *with_.parts), optimizer("sgd", 0.1), False, 1, 4, (), "mlp", None)
        check_needs(context)


def past(rounds=3, clients=50, drawn=10, evenly=True, closed_loop=False, length=1):
    return RoundsSoFar(rounds, clients, drawn, evenly, closed_loop, length)


def test_epsilon_of_the_rounds_so_far(monkeypatch):
    monkeypatch.setattr(MODULE, "epsilon", lambda *values: values)
    assert PrivateMean(1.0, 2.0).round_metrics(past()) == {"epsilon": (2.0, 3, 50, 10, 50**-1.1)}
    assert PrivateMean(1.0, 2.0, 1e-4).round_metrics(past(evenly=False)) == {"epsilon": (2.0, 3, 50, 50, 1e-4)}
    assert PrivateMean().round_metrics(past(length=2)) == {}
    assert PrivateMean().round_metrics(past(evenly=False, closed_loop=True)) == {}


@pytest.mark.slow
def test_every_line_has_an_epsilon(monkeypatch):
    monkeypatch.setattr(MODULE, "epsilon", lambda *values: values[1:4])
    even, others = Participation(clients_per_round=2), Participation(clients_per_round=2, availability=bernoulli(0.5))
    dp = recipes.dp(noise=0.5)
    assert [line["epsilon"] for line in run(dp, rounds=3, participation=even)] == [(1, 4, 2), (2, 4, 2), (3, 4, 2)]
    assert [line["epsilon"] for line in run(dp, participation=others)] == [(1, 4, 4)]


def test_without_the_package_the_terminal_says_once_how_to_get_it(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    MODULE._warn_once.cache_clear()
    assert [PrivateMean().round_metrics(past(number)) for number in (1, 2)] == [{}, {}]
    (record,) = caplog.records
    assert "dp-accounting: pip install 'fedjax_bal[privacy]'" in record.message
