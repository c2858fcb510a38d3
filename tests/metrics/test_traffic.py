"""Bytes between the server and a client, against sizes that are added up by hand."""

from functools import partial
from types import SimpleNamespace

import jax
import pytest
import quick
import table
from methods import faking

from fedjax_bal import recipes, selection
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.models import normalises
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation
from fedjax_bal.testing import toy
from fedjax_bal.testing.workbench import Bench


def sizes_of(model):
    """Bytes of parts of a network, and its numbers of classes and features."""
    variables = jax.eval_shape(model.init, jax.random.key(0))
    size = lambda tree: sum(4 * leaf.size for leaf in jax.tree.leaves(tree))
    image = jax.ShapeDtypeStruct((1, *model.input_shape), model.input_dtype)
    outputs, _ = jax.eval_shape(partial(model.apply, train=False), variables, image)
    named = jax.tree_util.tree_leaves_with_path(variables.params)
    return SimpleNamespace(
        all=size(variables), params=size(variables.params),
        matrices=sum(4 * leaf.size for _, leaf in named if leaf.ndim > 1), stats=size(variables.stats),
        norm=sum(4 * leaf.size for path, leaf in named if any(map(normalises, path))),
        head=size(variables.params.get("head")), C=model.num_classes, F=outputs.features.shape[-1],
    )  # fmt: skip


def prototypes(m):
    """Down: means, and whether there is one, a byte; up: sums and counts."""
    return m.all + 4 * m.C * m.F + m.C, m.all + 4 * m.C * m.F + 4 * m.C


def body(m):
    return m.all - m.head, m.all - m.head


def controls(m):
    """A control variate down and its change up."""
    return m.all + m.params, m.all + m.params


def momentum(m):
    return m.all + m.params, m.all


SENT = {
    "climb": lambda m: (m.all, m.all + 4),  # the loss
    "creff": lambda m: (m.all + m.head, m.all + m.C * m.head + 4 * m.C),  # gradients by class, and which there are
    "fedas": lambda m: (m.all - m.head, m.all - m.head + 4),  # the trace of the Fisher information
    "fedbabu": body,
    "fedbn": lambda m: (m.all - m.norm - m.stats,) * 2,
    "fedcm": momentum,
    "fedgamma": controls,
    "fedgen": lambda m: (m.all + 4 * (8 * (3 + m.C) + 8 * 5 + 9 * m.F + 1), m.all),  # a generator and a number down
    "fedgf": lambda m: (m.all + m.params + 4, m.all + 4),  # a shift and its share down, a length up
    "fedlesam_s": controls,
    "fedmoswa": controls,
    "fedmuon": lambda m: (m.all + m.params + m.matrices, m.all + m.matrices),  # a mean update down; momenta both ways
    "fedsmoo": controls,  # the estimate of the shift down, a dual variable up
    "fedetf": lambda m: (m.all + 4,) * 2,  # a scale beside the dense layer before the simplex
    "fedlf": prototypes,
    "fedmr": prototypes,
    "fednh": lambda m: (m.all - 4 * m.C + 4,) * 2,  # no bias, but a scale; prototypes down, in their place sums up
    "fedpac": lambda m: (prototypes(m)[0], prototypes(m)[1] + 4 + 4 * m.C * m.F),  # a variance and mean features
    "fedper": body,
    "fedproto": prototypes,
    "fedrep": body,
    "fedyoyo": lambda m: (m.all + 4 * m.C,) * 2,  # a class prior down, effective sizes up
    # 4 bits for each number but biases, a deviation for each of both layers, and a count of these.
    "fedwsq": lambda m: (m.all + 8, m.all - m.matrices + m.matrices // 8 + 12),
    "ldam": lambda m: (m.all - 4 * m.C,) * 2,  # no bias
    "lg_fedavg": lambda m: (m.head, m.head),
    "local": lambda m: (0, 0),
    "moon": lambda m: (m.all - m.head + 4 * ((m.F + 1) * (m.F + 256) + 257 * m.C),) * 2,  # two layers more
    "mofedsam": momentum,
    "ratio_loss": lambda m: (m.all + 4 * m.C, m.all),
    "rebafl": prototypes,
    "rucr": lambda m: (  # sums of features and of directions, and counts; a classifier and a number of rows
        m.all + 8 * m.C * m.F + 4 * m.C,
        m.all + 8 * m.C * m.F + 4 * m.C + m.head + 4,
    ),
    "scaffold": controls,
}
"""Bytes down and up of the methods that send anything else than the model both ways."""

CLOSING = {
    "afl": lambda m: 4 * m.F * (m.F + m.C),
    "ccvr": lambda m: 4 * m.C * (1 + m.F + m.F**2),
    "fed3r": lambda m: 4 * (m.F + 1) * (m.F + 1 + m.C),
    "fedncm": lambda m: 4 * m.C * (1 + m.F),
}
"""Bytes up in a closing round, in which all clients receive the model."""


@pytest.mark.parametrize("name", quick.only(recipes.RECIPES, "fedavg", *CLOSING, *SENT))
def test_bytes_of_every_method_are_those_of_what_it_sends(name, monkeypatch):
    faking.replace_generators(monkeypatch, faking.simplest)
    recipe, options = table.small(name)
    m = sizes_of(options.get("model", toy.network()))
    sim = Bench(recipe, **{key: value for key, value in options.items() if key != "tolerance"}).simulation
    assert sim._traffic == SENT.get(name, lambda m: (m.all, m.all))(m)
    assert sim._closing_traffic == ((m.all, CLOSING[name](m)) if name in CLOSING else (0, 0))


def small(recipe, rounds, **options):
    local = LocalTraining(lone_rows="keep", batch_size=4, optimizer=optimizer("sgd", 0.1))
    return build_simulation(
        recipe, toy.network(), toy.federation(), toy.test_set(), rounds=rounds, local=local, **options
    )


def test_a_frozen_classifier_is_sent_once_the_server_changes_it():
    m = sizes_of(toy.network())
    frozen, tuned = recipes.fedbabu(), recipes.fedavg_ft(epochs=1)
    assert small(recipes.combine(frozen, tuned), rounds=1)._traffic == (m.all, m.all - m.head)


def test_a_selector_that_learns_from_losses_gets_them():
    m = sizes_of(toy.network())
    learning = selection.power_of_choice(2, 4, sizes=toy.SIZES)
    sim = small(recipes.fedavg(), rounds=1, participation=Participation(selector=learning))
    assert sim._traffic == (m.all, m.all + 4)


@pytest.mark.slow
def test_a_closing_round_is_counted_with_each_evaluation_and_once_if_a_run_is_made_longer():
    recipe, m, clients = recipes.ccvr(per_class=2, batch_size=4), sizes_of(toy.network()), len(toy.SIZES)
    options = {"participation": Participation(clients_per_round=3), "evaluation": Evaluation(every=2)}
    options |= {"execution": Execution(rounds_per_dispatch=3)}
    short, long = (small(recipe, rounds=rounds, **options) for rounds in (3, 4))
    stopped = short.advance(0, short.init(0))
    goes_on = long.advance(0, stopped.snapshot)
    statistics = 4 * m.C * (1 + m.F + m.F**2)
    for record, rounds in zip([*stopped.records, *goes_on.records], (2, 1, 2), strict=True):
        assert record["bytes_up"] == rounds * 3 * m.all + clients * statistics
        assert record["bytes_down"] == rounds * 3 * m.all + clients * m.all
