"""FedFomo: against its transcription, with all clients' models in a table."""

import jax
import numpy as np
import pytest
import quick
import reference
import toys
from methods import float64
from methods.heads import as_numpy, federation, flat, flat_images, gradient, network, own_accuracies

from fedjax_bal.engine.device import purpose_key, training_key
from fedjax_bal.recipes import combine, fedamp, fedfomo, scaffold

pytestmark = pytest.mark.usefixtures("double")

ROUNDS = 6
CASES = {
    "three": {"models": 3},
    "greedy, l1": {"models": 2, "exploration": 0.0, "norm": "l1"},
    "all rows": {"models": 4, "held_out": 0.0, "exploration": 1.0, "decay": 0.3},
}


def rows_of(client):
    """A client's rows."""
    data = toys.federation()
    return data.rows[data.offsets[client] : data.offsets[client + 1]]


def held_out(client, share):
    """Those rows of a client that have the smallest draws."""
    rows = rows_of(client)
    draws = [int(jax.random.bits(jax.random.fold_in(jax.random.key(0), row), dtype=np.uint32)) for row in rows]
    count = 0 if len(rows) == 1 or not share else max(1, int(share * len(rows)))
    return rows[np.argsort(draws)[:count]]


def chosen(client, number, known, affinity, models, exploration, decay):
    """Other clients, whose models are tried; only the draws are the library's."""
    key = training_key(jax.random.key(float64.SEED), np.int32(number), np.int32(client), np.int32(0))
    left, picked = sorted(known - {client}), []
    for own in jax.random.split(purpose_key(key, "prepare/FirstOrderCombination"), models - 1):
        coin, order = jax.random.split(own)
        if not left:
            break
        among = left
        if jax.random.uniform(coin) >= max(0.0, exploration - decay * number):
            among = [j for j in left if affinity[client, j] == max(affinity[client, left])]
        draws = np.asarray(jax.random.uniform(order, (float64.N,)))
        picked.append(max(among, key=lambda j: draws[j]))
        left = [j for j in left if j != picked[-1]]
    return picked


def mean_loss(model, rows):
    """0 without rows."""
    if not len(rows):
        return 0.0
    logits = np.tanh(flat_images()[rows] @ model["body"]) @ model["kernel"] + model["bias"]
    return -np.log(reference.softmax(logits)[np.arange(len(rows)), toys.federation().labels[rows]]).mean()


def combined(before, after, others, rows, norm):
    """The model from which a client starts, and the weights of the others before they are divided."""
    vector = lambda model: np.concatenate([leaf.ravel() for leaf in model.values()])
    weights = []
    for model in (after, *others):
        distance = np.linalg.norm(vector(model) - vector(before), 1 if norm == "l1" else 2)
        weights.append((mean_loss(before, rows) - mean_loss(model, rows)) / distance if distance else 0.0)
    helpful = np.maximum(weights, 0)
    if not helpful.any():
        return before if len(rows) else after, weights[1:]
    helpful = helpful / helpful.sum()
    models = (after, *others)
    moved = {k: sum(w * (m[k] - before[k]) for w, m in zip(helpful, models, strict=True)) for k in before}
    return float64.plus(before, moved), weights[1:]


@pytest.mark.parametrize("name", quick.only(CASES, "three"))
def test_fedfomo_equals_its_transcription(name):
    knobs = {"held_out": 0.2, "exploration": 0.3, "decay": 0.05, "norm": "l2"} | CASES[name]
    sim = float64.simulation(fedfomo(**knobs), rounds=ROUNDS, model=network(), federation=federation())
    state, records, _ = as_numpy(float64.finished(sim))
    first = model = flat(float64.initial(sim))
    own, table, affinity, fallen = dict.fromkeys(range(float64.N), (first, first)), {}, np.zeros((float64.N,) * 2), 0
    for number, cohort in float64.cohorts(sim):
        trained, given = {}, {}
        for c in cohort:
            validation = held_out(c, knobs["held_out"])
            others = chosen(c, number, set(table), affinity, knobs["models"], knobs["exploration"], knobs["decay"])
            tried = validation if knobs["held_out"] else rows_of(c)
            start, weights = combined(*own[c], [table[j] for j in others], tried, knobs["norm"])
            fallen += start is own[c][0] and c in table
            given[c] = list(zip(others, weights, strict=True))
            draws = reference.draws(toys.federation(), float64.SEED, number, c, float64.OPTIONS)
            batches = [batch[~np.isin(batch, validation)] for batch in draws]
            batches = [batch for batch in batches if len(batch)]
            trained[c] = start, float64.train(start, c, number, gradient=gradient, batches=batches)[0]
        own |= trained
        table |= {c: after for c, (_, after) in trained.items()}
        for c, pairs in given.items():
            for j, weight in pairs:
                affinity[c, j] += weight
        model = float64.mean(float64.by_size(cohort), {c: table[c] for c in cohort}) if cohort else model
    assert np.count_nonzero(affinity) > 5 and (affinity < 0).any()
    if name == "three":
        assert fallen  # some client found nothing better than its model before training
    float64.assert_equal(flat(state.variables.params), model)
    stacked = lambda params: {"body": params["body"], **params["head"]}
    kept = state.memory["FirstOrderCombination"]
    for place, params in enumerate((kept.before, kept.after)):
        float64.assert_equal(stacked(params), {k: np.stack([own[c][place][k] for c in own]) for k in first})
    float64.assert_equal({"p": state.server["FirstOrderCombination"].affinity}, {"p": affinity})
    accuracies = [own_accuracies(own[c][1]["body"], {j: own[j][1] for j in own})[c] for c in range(float64.N - 1)]
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(accuracies))


def test_another_model_of_the_clients_own_is_refused():
    for other, message in ((fedamp, "MessagePassing, by which"), (scaffold, "ControlVariates, which takes")):
        with pytest.raises(ValueError, match=f"fedfomo: received {message}"):
            float64.simulation(combine(fedfomo(), other()))
