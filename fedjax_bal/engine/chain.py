"""A chain: clients that train one after another on the same parameters."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.broken import code_of, first_broken
from fedjax_bal.engine.evaluation import TestSet, hits
from fedjax_bal.engine.held_out import own_hits
from fedjax_bal.engine.keys import visit_key
from fedjax_bal.engine.setting import Setting
from fedjax_bal.engine.spread import norm, shortened, squared_norm
from fedjax_bal.engine.visit import outcome_of, prepare, visit
from fedjax_bal.parts import Deliver, Memory, Probe, Report
from fedjax_bal.rows import over_rows
from fedjax_bal.types import Array, Batch, Context, Federation, Key, Outcome, PyTree, Variables


class Links(NamedTuple):
    """The clients of a chain, in order; leaves `[L, ...]`, or `[G, L, ...]` for all chains."""

    clients: Array
    delivered: Array
    memory: PyTree
    limits: Array | None = None


class Shown(NamedTuple):
    """What is kept of every visit; leaves `[L, ...]`, or `[G, L, ...]` for all chains.

    Attributes:
        memory: the client's memory after it.
        loss_sum: training loss summed over the steps of the last pass, `Float[]`.
        steps: steps of the last pass, `Int32[]`.
        broken: what is wrong with what it hands back, a code of `broken.py`, `Int32[]`.
        correct: the client's rows that its trained model classifies correctly, `Int32[]`; 0 unless asked for.
        tried: the test images of the trial that it classifies correctly, `Int32[]`; 0 where there is none.
        probes: what each probe part found out in the last pass, by slot.
        own_hits: the client's own test rows that it classifies correctly, `Int32[]`; 0 unless they are due.
        norm: that of the parameters handed back, `Float[]`, in the first pass, infinite beyond what squares can hold;
            where updates have a bound that of its chain's update.
    """

    memory: PyTree
    loss_sum: Array
    steps: Array
    broken: Array
    correct: Array
    tried: Array
    probes: PyTree
    own_hits: Array
    norm: Array


class ChainResult(NamedTuple):
    """What a chain brings back.

    Attributes:
        delta: change of the parameters.
        stats: batch statistics at its end.
        reports: summed over its clients, by slot.
        shown: what is kept of its visits, leaves `[L, ...]`.
    """

    delta: PyTree
    stats: PyTree
    reports: PyTree
    shown: Shown


class Passed(NamedTuple):
    """What a client hands to the next one.

    Attributes:
        variables: the model.
        optimizer: the local optimizer's state; None where everybody begins with a fresh one.
    """

    variables: Variables
    optimizer: PyTree


class Trial(NamedTuple):
    """What clients' own models are tried on after training, beside their own test rows.

    Attributes:
        test: test images; None for none.
        due: whether they are tried this round, `Bool[]`.
    """

    test: TestSet | None
    due: Array


class Round(NamedTuple):
    """What is the same for all chains of a round.

    `trial` is None where clients' models aren't tried, `bound` where nobody asks how long updates are.
    """

    key: Key
    number: Array
    variables: Variables
    broadcast: PyTree
    federation: Federation
    trial: Trial | None = None
    bound: Array | None = None


def chain(setting: Setting, shared: Round, links: Links, longest: Array) -> ChainResult:
    """Sends the parameters through a chain of clients, `setting.passes` times.

    A client that doesn't deliver passes on what it received, and nothing of it is kept; as nobody can see what it
    computed, it is not computed.

    Args:
        setting: the setting.
        shared: what all chains of the round have in common.
        links: the clients of this chain.
        longest: the largest size in each place of all chains that are trained along with this one, `Int32[L]`.

    Returns:
        The chain's result; reports and losses come from the last pass.
    """

    def one_pass(carry: tuple[Passed, PyTree], turn: Array) -> tuple[tuple[Passed, PyTree], PyTree]:
        passed, memory = carry

        def one_link(passed: Passed, at: tuple[Links, Array]) -> tuple[Passed, tuple[PyTree, Shown]]:
            link, longest = at
            ctx = context(setting, shared, passed.variables, link)
            key = visit_key(shared.key, shared.number, link.clients, turn)
            outcome, last = visit(setting, key, ctx, longest, passed.optimizer)
            variables, seen = leave(setting, shared, link, outcome, last.loss_sum)
            return Passed(variables, last.optimizer if setting.carried else None), seen

        passed, (reports, shown) = lax.scan(one_link, passed, (links._replace(memory=memory), longest))
        return (passed, shown.memory), (reports, shown._replace(memory=None))

    transform = setting.local.optimizer.transform(shared.number)
    first = Passed(shared.variables, transform.init(shared.variables.params) if setting.carried else None)
    ((end, _), memory), brought = lax.scan(one_pass, (first, links.memory), jnp.arange(setting.passes))
    reports, shown = jax.tree.map(lambda leaf: leaf[-1], brought)
    reports = jax.tree.map(lambda leaf: leaf.sum(0), reports)
    shown = shown._replace(memory=memory, broken=first_broken(brought[1].broken), norm=brought[1].norm[0])
    return _result(shared, end, reports, shown)


def sizes_of(federation: Federation, clients: Array, delivered: Array) -> Array:
    """The number of rows of each client, 0 for one that doesn't deliver; like `clients`."""
    first, last = (federation.offsets.at[clients + shift].get(mode="clip") for shift in (0, 1))
    return jnp.where(delivered, last - first, 0)


def context(setting: Setting, shared: Round, variables: Variables, link: Links) -> Context:
    """The context of a visit to one client, without what is prepared."""
    federation = shared.federation
    counts = federation.class_counts.at[link.clients].get(mode="clip")
    size = sizes_of(federation, link.clients, link.delivered)
    return Context(
        round=shared.number,
        client=link.clients,
        class_counts=jnp.where(link.delivered, counts, 0),
        size=size,
        start=variables,
        broadcast=shared.broadcast,
        memory=link.memory,
        prepared={},
        model=setting.model,
        federation=federation,
        learning_rate=jnp.asarray(setting.local.optimizer.rate(shared.number), float),
        momentum=setting.local.optimizer.momentum,
        batch_size=setting.batch_size,
        steps=setting.visit_steps(size, link.limits),
    )


def leave(
    setting: Setting, shared: Round, link: Links, outcome: Outcome, loss_sum: Array
) -> tuple[Variables, tuple[PyTree, Shown]]:
    """The end of a visit.

    Args:
        setting: the setting.
        shared: what all chains of the round have in common.
        link: the client.
        outcome: what it produced.
        loss_sum: its training loss, summed.

    Returns:
        The variables that go on from here, its reports, and what is kept.
    """
    on = link.delivered
    outcome, outdated = _handed_back(setting, outcome)
    memory = {
        part.slot: _where(on, part.remember(link.memory[part.slot], outcome), link.memory[part.slot])
        for part in setting.playing(Memory)
    }
    reports = {part.slot: _where(on, part.report(outcome), None) for part in setting.playing(Report)}
    probes = {part.slot: _where(on, part.probe(outcome), None) for part in setting.playing(Probe)}
    squares = squared_norm(outcome.end.params)
    others = outcome.end.stats, memory, reports, probes
    finite = surely_finite(squares + squared_norm(_inexact(others)), (outcome.end.params, *others))
    broken = jnp.where(on, code_of(finite, outdated), 0)
    correct = _correct(outcome) if setting.local_accuracy else jnp.zeros((), jnp.int32)
    tried = jnp.where(on & (outcome.steps > 0), _tried(setting, shared, outcome.end), 0)
    own = jnp.where(on, _own_hits(setting, shared, link, outcome.end), 0)
    shown = Shown(memory, loss_sum, outcome.steps, broken, correct, tried, probes, own, jnp.sqrt(squares))
    return _where(on, outcome.end, outcome.start), (reports, shown)


def leave_alone(setting: Setting, shared: Round, links: Links, end: Variables, loss_sum: Array) -> ChainResult:
    """The result of a chain of a single client that has been trained elsewhere.

    Args:
        setting: the setting.
        shared: what all chains of the round have in common.
        links: the client, leaves `[1, ...]`.
        end: its variables after training.
        loss_sum: its training loss, summed.

    Returns:
        The chain's result.
    """
    link = jax.tree.map(lambda leaf: leaf[0], links)
    ctx = prepare(setting, own_key(shared, link), context(setting, shared, shared.variables, link))
    end, (reports, shown) = leave(setting, shared, link, outcome_of(setting, ctx, end), loss_sum)
    return _result(shared, end, reports, jax.tree.map(lambda leaf: leaf[None], shown))


def nothing_yet(setting: Setting, shared: Round, link: Links) -> ChainResult:
    """A chain's result in zeros, found without tracing any training; `shown` is that of a single visit.

    Args:
        setting: the setting.
        shared: what all chains of the round have in common.
        link: any client.

    Returns:
        Zeros.
    """

    def untrained(shared: Round, link: Links) -> ChainResult:
        ctx = prepare(setting, own_key(shared, link), context(setting, shared, shared.variables, link))
        end, (reports, shown) = leave(setting, shared, link, outcome_of(setting, ctx, shared.variables), jnp.zeros(()))
        return _result(shared, end, reports, shown)

    shapes = jax.eval_shape(untrained, shared, link)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def own_key(shared: Round, link: Links) -> Key:
    """The key of the only visit to a client in a round."""
    return visit_key(shared.key, shared.number, link.clients, jnp.zeros((), jnp.int32))


def all_finite(tree: PyTree) -> Array:
    """Whether every number of a model, or of anything else, is finite, `Bool[]`."""
    return surely_finite(squared_norm(_inexact(tree)), tree)


def surely_finite(squares: Array, tree: PyTree) -> Array:
    """Whether every number of a tree is finite, `Bool[]`.

    Args:
        squares: a number that isn't finite where one of them isn't, as is the sum of their squares, `Float[]`. Squares
            are added up much faster than numbers are looked at.
        tree: the numbers, which are looked at where that isn't finite.

    Returns:
        Whether they are; exact, though squares may overflow where the numbers don't.

    Example:
        >>> bool(surely_finite(jnp.array(jnp.inf), [jnp.array([1e30])]))
        True
    """
    exactly = lambda: jnp.stack([jnp.isfinite(leaf).all() for leaf in _inexact(tree)]).all()
    return lax.cond(jnp.isfinite(squares), lambda: jnp.array(True), exactly)


def _inexact(tree: PyTree) -> list[Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]


def _correct(outcome: Outcome) -> Array:
    """How many of its own rows a client's trained model classifies correctly, `Int32[]`."""

    def add(total: Array, batch: Batch) -> Array:
        outputs, _ = outcome.ctx.model.apply(outcome.end, batch.images, train=False)
        return total + (batch.real & (outputs.logits.argmax(-1) == batch.labels)).sum()

    return over_rows(add, jnp.zeros((), jnp.int32), outcome.ctx)


def _tried(setting: Setting, shared: Round, end: Variables) -> Array:
    """How many test images of the trial a client's trained model classifies correctly, `Int32[]`."""
    none = jnp.zeros((), jnp.int32)
    if shared.trial is None or shared.trial.test is None:
        return none
    test, (mean, std) = shared.trial.test, (shared.federation.mean, shared.federation.std)
    return lax.cond(shared.trial.due, lambda: hits(setting.model, end, test, mean, std), lambda: none)


def _own_hits(setting: Setting, shared: Round, link: Links, end: Variables) -> Array:
    """How many of its own test rows a client's trained model classifies correctly, `Int32[]`."""
    none, tests = jnp.zeros((), jnp.int32), shared.federation.tests
    if shared.trial is None or tests is None:
        return none
    look = lambda: own_hits(setting.model, end, shared.federation, tests, link.clients, setting.batch_size)
    return lax.cond(shared.trial.due, look, lambda: none)


def _result(shared: Round, end: Variables, reports: PyTree, shown: Shown) -> ChainResult:
    delta = jax.tree.map(jnp.subtract, end.params, shared.variables.params)
    if shared.bound is None:
        return ChainResult(delta, end.stats, reports, shown)
    length = norm(delta)
    told = shown._replace(norm=jnp.broadcast_to(length, shown.norm.shape))
    return ChainResult(shortened(delta, length, shared.bound), end.stats, reports, told)


def _handed_back(setting: Setting, outcome: Outcome) -> tuple[Outcome, Array]:
    """What a client hands back of what it produced, and whether that is of an earlier round."""
    outdated = jnp.zeros((), bool)
    for part in setting.playing(Deliver):
        outdated |= part.outdated(outcome)
        outcome = outcome._replace(end=part.deliver(outcome))
    return outcome, outdated


def _where(on: Array, new: PyTree, old: PyTree | None) -> PyTree:
    if old is None:
        return jax.tree.map(lambda leaf: jnp.where(on, leaf, jnp.zeros_like(leaf)), new)
    return jax.tree.map(lambda a, b: jnp.where(on, a, b), new, old)
