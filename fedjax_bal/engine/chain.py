"""A chain: clients that train one after another on the same parameters."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_bal.engine.keys import visit_key
from fedjax_bal.engine.setting import Setting
from fedjax_bal.engine.visit import visit
from fedjax_bal.parts import Memory, Report
from fedjax_bal.types import Array, Context, Federation, Key, PyTree, Variables


class Links(NamedTuple):
    """The clients of a chain, in order; leaves `[L, ...]`, or `[G, L, ...]` for all chains."""

    clients: Array
    delivered: Array
    memory: PyTree


class ChainResult(NamedTuple):
    """What a chain brings back.

    Attributes:
        delta: change of the parameters.
        stats: batch statistics at its end.
        memory: the memory of its clients, leaves `[L, ...]`.
        reports: summed over its clients, by slot.
        loss_sum: training loss summed over the steps of the last pass, `Float[L]`.
        steps: steps of the last pass, `Int32[L]`.
        finite: `Bool[L]`.
    """

    delta: PyTree
    stats: PyTree
    memory: PyTree
    reports: PyTree
    loss_sum: Array
    steps: Array
    finite: Array


class Round(NamedTuple):
    """What is the same for all chains of a round."""

    key: Key
    number: Array
    variables: Variables
    broadcast: PyTree
    federation: Federation


def chain(setting: Setting, shared: Round, links: Links) -> ChainResult:
    """Sends the parameters through a chain of clients, `setting.passes` times.

    A client that doesn't deliver passes on what it received, and nothing of it is kept; as nobody can see what it
    computed, it is not computed.

    Args:
        setting: the setting.
        shared: what all chains of the round have in common.
        links: the clients of this chain.

    Returns:
        The chain's result; reports and losses come from the last pass.
    """

    def one_pass(carry: tuple[Variables, PyTree], turn: Array) -> tuple[tuple[Variables, PyTree], PyTree]:
        variables, memory = carry

        def one_link(variables: Variables, link: Links) -> tuple[Variables, tuple[PyTree, PyTree]]:
            return _visit_link(setting, shared, turn, variables, link)

        variables, (memory, shown) = lax.scan(one_link, variables, links._replace(memory=memory))
        return (variables, memory), shown

    start = (shared.variables, links.memory)
    (end, memory), shown = lax.scan(one_pass, start, jnp.arange(setting.passes))
    reports, loss_sum, steps, finite = jax.tree.map(lambda leaf: leaf[-1], shown)
    return ChainResult(
        delta=jax.tree.map(jnp.subtract, end.params, shared.variables.params),
        stats=end.stats,
        memory=memory,
        reports=jax.tree.map(lambda leaf: leaf.sum(0), reports),
        loss_sum=loss_sum,
        steps=steps,
        finite=finite,
    )


def _visit_link(
    setting: Setting, shared: Round, turn: Array, variables: Variables, link: Links
) -> tuple[Variables, tuple[PyTree, PyTree]]:
    ctx = _context(setting, shared, variables, link)
    outcome, loss_sum = visit(setting, visit_key(shared.key, shared.number, link.clients, turn), ctx)
    on = link.delivered
    memory = {
        part.slot: _where(on, part.remember(link.memory[part.slot], outcome), link.memory[part.slot])
        for part in setting.playing(Memory)
    }
    reports = {part.slot: _where(on, part.report(outcome), None) for part in setting.playing(Report)}
    shown = (reports, loss_sum, outcome.steps, all_finite(outcome.end))
    return _where(on, outcome.end, variables), (memory, shown)


def _context(setting: Setting, shared: Round, variables: Variables, link: Links) -> Context:
    federation = shared.federation
    counts = federation.class_counts.at[link.clients].get(mode="clip")
    first, last = (federation.offsets.at[link.clients + shift].get(mode="clip") for shift in (0, 1))
    return Context(
        round=shared.number,
        client=link.clients,
        class_counts=jnp.where(link.delivered, counts, 0),
        size=jnp.where(link.delivered, last - first, 0),
        start=variables,
        broadcast=shared.broadcast,
        memory=link.memory,
        prepared={},
        model=setting.model,
        federation=federation,
        learning_rate=jnp.asarray(setting.local.rate(shared.number), jnp.float32),
        momentum=setting.local.momentum,
        batch_size=setting.batch_size,
    )


def _where(on: Array, new: PyTree, old: PyTree | None) -> PyTree:
    if old is None:
        return jax.tree.map(lambda leaf: jnp.where(on, leaf, jnp.zeros_like(leaf)), new)
    return jax.tree.map(lambda a, b: jnp.where(on, a, b), new, old)


def all_finite(variables: Variables) -> Array:
    """Whether every number of a model is finite, `Bool[]`."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(variables)]).all()
