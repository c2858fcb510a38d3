"""FedAMP: against its transcription, with all clients' models in a table."""

import numpy as np
import pytest
import quick
import toys
from methods import float64
from methods.heads import as_numpy, federation, flat, gradient, network, own_accuracies

from fedjax_bal.engine.device import PERSONAL
from fedjax_bal.engine.host.fine_tuning import FineTuner
from fedjax_bal.options import Execution, Participation
from fedjax_bal.recipes import combine, fedala, fedamp, fedfomo, local, scaffold

pytestmark = pytest.mark.usefixtures("double")

ROUNDS = 4
CASES = {
    "cosine": fedamp(sigma=4.0, alpha=2.0),
    "cosine, own weight": fedamp(sigma=4.0, own_weight=0.3, alpha=2.0, begin="own"),
    "distance": fedamp("distance", sigma=6.0, alpha=0.9, attraction=0.5),
}


def mixture(own, others, part):
    """The model towards which a client is drawn."""
    vector = lambda model: np.concatenate([leaf.ravel() for leaf in model.values()])
    if not others:
        return own
    w, models = vector(own), [vector(other) for other in others]
    if part.attention == "distance":
        shares = [part.alpha * np.exp(-((w - v) ** 2).sum() / part.sigma) / part.sigma for v in models]
        mine = 1 - sum(shares)
    else:
        mine = 1 / (1 + len(models)) if part.own_weight is None else part.own_weight
        scores = [np.exp(part.sigma * w @ v / np.linalg.norm(w) / np.linalg.norm(v)) for v in models]
        shares = [(1 - mine) * score / sum(scores) for score in scores]
    return {k: mine * own[k] + sum(s * other[k] for s, other in zip(shares, others, strict=True)) for k in own}


@pytest.mark.parametrize("name", quick.only(CASES, "cosine"))
def test_fedamp_equals_its_transcription(name):
    part = CASES[name].parts[0]
    pull = part.attraction / part.alpha
    sim = float64.simulation(CASES[name], rounds=ROUNDS, model=network(), federation=federation())
    state, records, _ = as_numpy(float64.finished(sim))
    first = model = flat(float64.initial(sim))
    table = {}
    for number, cohort in float64.cohorts(sim):
        trained = {}
        for c in cohort:
            own = table.get(c, first)
            u = mixture(own, [table[j] for j in table if j != c], part)
            change = lambda grad, w, u=u: {k: grad[k] + pull * (w[k] - u[k]) for k in w}
            begin = u if part.begin == "cloud" else own
            trained[c] = float64.train(begin, c, number, gradient=gradient, change=change)[0]
        table |= trained
        model = float64.mean(float64.by_size(cohort), trained) if cohort else model
    float64.assert_equal(flat(state.variables.params), model)
    own = {c: table.get(c, first) for c in range(float64.N)}
    stacked = lambda params: {"body": params["body"], **params["head"]}
    kept = {k: np.stack([own[c][k] for c in own]) for k in first}
    float64.assert_equal(stacked(state.memory["MessagePassing"]), kept)
    latest = state.server["MessagePassing"]
    assert [c for c in range(float64.N) if latest.known[c]] == sorted(table) != list(range(float64.N))
    float64.assert_equal(
        {k: leaf[latest.known] for k, leaf in stacked(latest.params).items()},
        {k: leaf[latest.known] for k, leaf in kept.items()},
    )
    accuracies = [own_accuracies(own[c]["body"], own)[c] for c in range(float64.N - 1)]
    assert records[-1]["client_accuracy"] == pytest.approx(np.mean(accuracies))


@pytest.mark.slow
def test_without_others_it_is_local_training():
    alone = float64.run(float64.simulation(fedamp(own_weight=1.0, attraction=0.0, begin="own"), rounds=ROUNDS))
    wanted = float64.run(float64.simulation(local(), rounds=ROUNDS)).memory[PERSONAL]
    for leaf in ("w1", "w2"):
        float64.assert_equal({leaf: alone.memory["MessagePassing"][leaf]}, {leaf: wanted[f".params['{leaf}']"]}, 1e-12)


def test_what_cannot_be_is_refused():
    for other, message in ((fedala, "AdaptiveAggregation, by which"), (scaffold, "ControlVariates, which takes")):
        with pytest.raises(ValueError, match=f"fedamp: received {message}"):
            float64.simulation(combine(fedamp(), other()))
    for recipe in fedamp(), fedfomo():
        chains = Participation(selector=toys.chosen([[0, 4], [2, 7]]))
        with pytest.raises(ValueError, match=f"{recipe.name}: received chains of 2 clients"):
            float64.simulation(recipe, participation=chains)
    tested = {"model": network(), "federation": federation()}
    with pytest.raises(ValueError, match="client_memory: received host, .*set it to device"):
        float64.simulation(fedamp(), execution=Execution(client_memory="host"), **tested)
    with pytest.raises(ValueError, match="personalised: received together with MessagePassing"):
        FineTuner(float64.simulation(fedamp(), **tested), 1)
