"""How well clients' own models do on the test set."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import toys
from rounding import FORMULA

from fedjax_bal import recipes
from fedjax_bal.engine.device.evaluation import in_batches, some_images
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.metrics import METRICS, Measured, Metric
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Evaluation, LocalTraining, Participation
from fedjax_bal.selection import bernoulli

OPTIONS = {"rounds": 4, "local": LocalTraining(batch_size=4, optimizer=optimizer("sgd", 0.3))}


def records(**options):
    test = options.pop("test", toys.test_set())
    simulation = build_simulation(recipes.fedavg(), toys.network(), toys.federation(), test, **(OPTIONS | options))
    return simulation.advance(0, simulation.init(0)).records


@pytest.mark.slow
def test_it_is_the_mean_over_those_who_deliver_on_some_images():
    images, labels = toys.test_set()
    half = len(labels) // 2
    few = some_images(in_batches(images, labels), half, len(labels))
    tested, wanted = (leaf[few.real] for leaf in (few.images, few.labels))
    model, options = toys.network(), OPTIONS | {"rounds": 1}
    make = lambda **more: build_simulation(
        recipes.fedavg(), model, toys.federation(), (images, labels), **(options | more)
    )
    together = make(evaluation=Evaluation(local_test_images=half), participation=Participation(delivery=bernoulli(0.6)))
    plan, _ = together.plan(0, 0, together.selector.init(0, toys.federation().num_clients))
    brought = plan.clients[plan.delivered]
    assert 1 < len(brought) < plan.clients.size

    def share(client):
        one = make(participation=Participation(selector=toys.chosen([[client]])))
        outputs, _ = model.apply(one.advance(0, one.init(0)).snapshot.state.variables, tested, train=False)
        return np.mean(np.argmax(outputs.logits, 1) == wanted)

    found = together.advance(0, together.init(0)).records[0]["local_test_accuracy"]
    assert found == pytest.approx(np.mean([share(client) for client in brought]), abs=FORMULA)


def test_more_images_than_there_are_are_refused():
    with pytest.raises(ValueError, match="local_test_images: received 1000"):
        records(evaluation=Evaluation(local_test_images=1000))


@pytest.mark.slow
def test_a_metric_registered_between_two_equal_runs_is_measured_in_the_second(monkeypatch):
    def squared_norm(trained):
        update = jax.tree.map(jnp.subtract, trained.outcome.end.params, trained.outcome.ctx.start.params)
        return optax.tree.norm(update, squared=True)

    def run():
        alone = Participation(selector=toys.chosen([[2]]))
        options: dict[str, Any] = OPTIONS | {"rounds": 1, "participation": alone}
        sim = build_simulation(recipes.fedavg(), toys.network(), toys.federation(), toys.test_set(), **options)
        start = jax.device_get(sim.init(0).state.variables.params)
        return sim, start, sim.advance(0, sim.init(0))

    before = run()  # kept, so that its program stays alive, which must not serve the second run
    assert "length" not in before[-1].records[0]
    total = lambda squares, cohort, evaluation: squares.sum()
    # A number that isn't a count.
    measured = Measured("length", lambda evaluation, federation: True, squared_norm, total, dtype=float)
    metric = Metric("length", "Squared norm.", lambda it: it.reported["length"], measured=measured)
    monkeypatch.setitem(METRICS._entries, "length", metric)
    _, start, advance = run()
    moved = jax.tree.map(np.subtract, advance.snapshot.state.variables.params, start)
    assert advance.records[0]["length"] == pytest.approx(sum((leaf**2).sum() for leaf in jax.tree.leaves(moved)))
