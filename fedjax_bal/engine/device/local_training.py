"""Local training of one client: prepare, draw, train."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_bal.data import bounded_loop, gather
from fedjax_bal.engine.device import leaves
from fedjax_bal.engine.device.debug import located, stop_at_nan
from fedjax_bal.engine.device.drawing import class_shares, purpose_key, shuffled, weighted
from fedjax_bal.engine.device.roles import call, restored
from fedjax_bal.engine.device.setting import Setting
from fedjax_bal.engine.device.trees import take
from fedjax_bal.parts import (
    Batches,
    Criterion,
    Draw,
    Gradient,
    Logits,
    Loss,
    Prepare,
    Separate,
    Shift,
    Start,
    Steps,
    Update,
)
from fedjax_bal.types import Array, Batch, Context, Key, Outcome, PyTree, Variables


class LocalState(NamedTuple):
    """State carried from local step to local step.

    Attributes:
        variables: the model.
        optimizer: the local optimizer's state; None once training is done.
        loss_sum: training loss summed over the steps, `Float[]`.
        steps_state: the value that each Steps part carries, by slot.
    """

    variables: Variables
    optimizer: PyTree
    loss_sum: Array
    steps_state: Mapping[str, PyTree]


def mean_cross_entropy(logits: Array, batch: Batch) -> Array:
    """Computes the mean cross-entropy over the real rows of a batch, `Float[]`; 0 if none is real."""
    return _mean_over_real(optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels), batch)


def _mean_over_real(losses: Array, batch: Batch) -> Array:
    real = batch.real.astype(losses.dtype)
    return (jnp.where(batch.real, losses, 0.0)).sum() / jnp.maximum(real.sum(), 1.0)


def train_locally(
    setting: Setting, key: Key, ctx: Context, longest: Array, optimizer: PyTree
) -> tuple[Outcome, LocalState]:
    """Trains one client on its own rows; returns the outcome and the state after the last step.

    `ctx` comes without `prepared`; a client of size 0 returns the variables that it received, or anything in an even
    layout. `longest`, `Int32[]`, is the size of the largest client that trains together with this one. The local
    optimizer starts from the state `optimizer`, or from a fresh state if that is None.
    """
    ctx = prepare(setting, key, ctx)
    order = row_order(setting, key, ctx, longest)

    def one_step(index: Array, carry: LocalState) -> LocalState:
        with located("in local step {} of {}", index + 1, ctx.steps):
            order_row = jnp.zeros((), jnp.int32)
            return stop_at_nan(setting, train_step, setting, key, ctx, index, order[None], order_row, carry)

    start = start_training(setting, ctx, optimizer)
    steps = ctx.steps
    if setting.layout.even:
        # A number that all clients of a bucket share isn't batched. With a number for each, every step selects between
        # old and new values, and so reads and writes all models once more. A client that doesn't deliver trains for
        # nothing. It starts from zeros, so that starts differ between clients: XLA would share equal ones with what
        # reads the received model after the loop, and copy them for the loop.
        steps = setting.local_steps(longest)
        begin = jax.tree.map(lambda leaf: jnp.where(ctx.size > 0, leaf, jnp.zeros_like(leaf)), start.variables)
        start = start._replace(variables=begin)
    end = bounded_loop(one_step, steps, start, None if ctx.max_size is None else setting.most_steps)
    return outcome_of(setting, ctx, end), end


def prepare(setting: Setting, key: Key, ctx: Context) -> Context:
    """Adds to the context the values that the Prepare parts compute before training."""
    made = {
        part.slot: call(setting, part, part.prepare, purpose_key(key, f"prepare/{part.slot}"), ctx.start, ctx)
        for part in setting.parts_with(Prepare)
    }
    return ctx._replace(prepared=made)


def row_order(setting: Setting, key: Key, ctx: Context, longest: Array) -> Array:
    """Draws the order in which a client's rows are used, as positions among them, `Int32[places]`.

    Each epoch has `row_length` places. If the number of steps is given instead of epochs, only the whole batches of
    each epoch follow one another, as a small client needs many epochs and a large client only part of one.
    """

    def order_of(epoch: Array) -> Array:
        epoch_key = purpose_key(jax.random.fold_in(key, epoch), "draw")
        if setting.local.drawing == "epochs":
            return shuffled(epoch_key, ctx.size, setting.row_length, longest)
        return weighted(epoch_key, ctx.class_counts, _log_weights(setting, ctx), setting.row_length)

    if setting.local.steps is None:
        return jax.vmap(order_of)(jnp.arange(setting.epochs)).reshape(-1)
    used = jnp.maximum(setting.steps_per_epoch(ctx.size), 1) * setting.batch_size
    epochs = -(-ctx.steps * setting.batch_size // used)

    def append(epoch: Array, order: Array) -> Array:
        # The next epoch overwrites the rest of this one after its whole batches.
        return lax.dynamic_update_slice(order, order_of(epoch).astype(jnp.int32), (epoch * used,))

    # The last epoch may reach beyond the last step.
    length = setting.local.steps * setting.batch_size + setting.row_length
    return lax.fori_loop(0, epochs, append, jnp.zeros(length, jnp.int32))


def _log_weights(setting: Setting, ctx: Context) -> Array:
    flat = jnp.zeros(ctx.class_counts.shape)
    parts = setting.parts_with(Draw)
    return sum((call(setting, part, part.log_weights, ctx.class_counts, ctx) for part in parts), flat)


def _as_drawn(setting: Setting, ctx: Context) -> Context:
    """Returns the context with the class counts that an epoch draws on average, if draws are weighted.

    A loss that corrects for the classes would correct a second time if it saw those of the client's rows. Counts are
    whole numbers, so that equal ones stay equal, and at least 1 for a class that the client has.
    """
    if not setting.parts_with(Draw):
        return ctx
    drawn = ctx.size * class_shares(ctx.class_counts, _log_weights(setting, ctx))
    whole = jnp.maximum(jnp.round(drawn), 1.0).astype(ctx.class_counts.dtype)
    return ctx._replace(class_counts=jnp.where(ctx.class_counts > 0, whole, 0))


def start_training(setting: Setting, ctx: Context, optimizer: PyTree = None) -> LocalState:
    """Makes the state of a client before its first step; the local optimizer's is fresh unless it is given."""
    if optimizer is None:
        optimizer = leaves.local_optimizer(setting, ctx.round, 0, ctx.start.params).init(ctx.start.params)
    drawn = _as_drawn(setting, ctx)
    steps = {part.slot: call(setting, part, part.init_steps, drawn) for part in setting.parts_with(Steps)}
    return LocalState(ctx.start, optimizer, jnp.zeros(()), steps)


def outcome_of(setting: Setting, ctx: Context, end: LocalState) -> Outcome:
    """Builds the outcome of a local training that ended with this state."""
    full = setting.optimizer.full_steps(ctx.steps, setting.most_steps)
    steps = ctx.steps if full is None else full
    rates = jax.tree.map(lambda rate: steps * rate, ctx.learning_rate)
    ctx = ctx._replace(steps_state=end.steps_state)
    return Outcome(ctx.start, end.variables, ctx.steps, rates, ctx, trained=end.variables)


def train_step(
    setting: Setting, key: Key, ctx: Context, index: Array, order: Array, order_row: Array, carry: LocalState
) -> LocalState:
    """Takes one local step, number `index` from 0.

    `order`, `Int32[clients, places]`, may hold the orders of several clients; this client's is row `order_row`.
    """
    # A lane gets the whole table and a row number, so that a turn reads one batch of it and doesn't copy the row.
    steps = jnp.maximum(setting.steps_per_epoch(ctx.size), 1)
    epoch = lax.div(index, steps)  # not `jnp.divmod`, whose care for negative numbers is five more loops of a program
    within = index - epoch * steps
    start = epoch * setting.row_length + within * setting.batch_size
    # With a given number of steps, `row_order` has no gaps between epochs.
    start = start if setting.local.steps is None else index * setting.batch_size
    positions = lax.dynamic_slice(order, (order_row, start), (1, setting.batch_size))[0]
    # A short batch is padded with positions after the client's last row.
    real = within * setting.batch_size + jnp.arange(setting.batch_size) < ctx.size
    batch = gather(ctx.federation, take(ctx.federation.offsets, ctx.client) + positions, real)
    for part in setting.parts_with(Start):
        # Selected, not branched on: lanes are at different steps.
        begin = call(setting, part, part.start, carry.variables, ctx, onto=carry.variables)
        chosen = jax.tree.map(lambda new, old: jnp.where(index == 0, new, old), begin, carry.variables)
        carry = carry._replace(variables=chosen)
    ctx = _as_drawn(setting, ctx)
    ctx = ctx._replace(learning_rate=setting.learning_rate(ctx.round, index), steps_state=carry.steps_state)

    def step_key(purpose: str) -> Key:
        return jax.random.fold_in(purpose_key(jax.random.fold_in(key, epoch), purpose), within)

    def step(active: Setting, carry: LocalState) -> LocalState:
        filled = batch
        seen = ctx
        for part in active.parts_with(Batches):
            filled = call(setting, part, part.batch, step_key(f"batch/{part.slot}"), filled, seen)
            seen = seen._replace(class_counts=call(setting, part, part.labelled, seen.class_counts, seen))
        return _learn(setting, active, step_key("model"), seen, index, filled, carry)

    # The round has no client axis, so that this stays a branch, and parts cost nothing before their first round. With
    # a batched round, `vmap` would compute every branch.
    starts = setting.first_rounds
    branch = sum(((ctx.round >= start).astype(jnp.int32) for start in starts[1:]), jnp.zeros((), jnp.int32))
    with located("on the batch of rows {} with labels {}, not padded: {}", batch.rows, batch.labels, batch.real):
        return lax.switch(branch, [partial(step, setting.since(start)) for start in starts], carry)


def _learn(
    setting: Setting, active: Setting, key: Key, ctx: Context, index: Array, batch: Batch, carry: LocalState
) -> LocalState:
    """Takes a step on a batch; `active` is the setting with only those parts that have begun."""
    params, stats = carry.variables
    trained = leaves.trained_leaves(setting, active, ctx, params)
    ctx = ctx._replace(trained=trained)

    def objective(params: PyTree, batch: Batch) -> tuple[Array, tuple[Array, PyTree, Mapping[str, PyTree]]]:
        outputs, after = ctx.model.apply(Variables(params, stats), batch.images, train=True, key=key, real=batch.seen)
        logits = outputs.logits
        carried = dict(carry.steps_state)
        for part in active.parts_with(Logits):
            logits = call(setting, part, part.logits, logits, batch, ctx)
        added = []
        separate = []
        for part in active.parts_with(Loss):
            terms = separate if isinstance(part, Separate) else added
            terms.append(call(setting, part, part.loss, outputs, batch, params, ctx))
        for part in active.parts_with(Steps):
            carried[part.slot] = call(setting, part, partial(part.next_steps, carried[part.slot]), outputs, batch, ctx)
        criteria = [
            call(setting, part, part.losses, logits, batch.labels, ctx) for part in active.parts_with(Criterion)
        ]
        loss = sum(added, _mean_over_real(criteria[0], batch) if criteria else mean_cross_entropy(logits, batch))
        # Only the model's loss is reported, and used to weigh and select clients.
        return sum(separate, loss), (loss, after.stats, carried)

    # Shift parts move the point at which the gradient is computed; the step still starts from `params`.
    point = params
    rows = batch
    for part in active.parts_with(Shift):
        shifted = leaves.shifted_leaves(setting, trained, params)
        rows = batch._replace(real=part.rows(batch, "step"))
        first = None
        if part.needs_gradient:
            seen = batch._replace(real=part.rows(batch, "shift"))
            first = leaves.keep(shifted, jax.grad(objective, has_aux=True)(params, seen)[0])
        moved = call(setting, part, part.shift, params, first, ctx._replace(trained=shifted), onto=params)
        point = leaves.select(shifted, moved, params)
        # `objective` sees this from now on, so that Steps parts can carry on from the shift.
        ctx = ctx._replace(shift=jax.tree.map(jnp.subtract, point, params))
    grads, (loss, stats, steps) = jax.grad(objective, has_aux=True)(point, rows)
    grads = leaves.keep(trained, grads)  # first, so that no norm includes frozen leaves
    for part in active.parts_with(Shift):
        if type(part).correct is not Shift.correct:
            grads = _corrected(setting, part, grads, objective, params, batch, ctx)
    if setting.optimizer.clip_at == "start":
        grads = leaves.clip_by_entry(setting, grads)
    for part in active.parts_with(Gradient):
        if isinstance(part, Steps):
            observed = call(setting, part, partial(part.observe, steps[part.slot]), grads, ctx)
            steps = {**steps, part.slot: observed}
            ctx = ctx._replace(steps_state={**ctx.steps_state, part.slot: observed})
        grads = call(setting, part, part.gradient, grads, params, ctx, onto=grads)
    grads = leaves.keep(trained, grads)  # again, as a part may have added to frozen leaves
    if setting.optimizer.clip_at == "end":
        grads = leaves.clip_by_entry(setting, grads)
    transform = leaves.local_optimizer(setting, ctx.round, index, params, trained)
    updates, optimizer = transform.update(grads, carry.optimizer, params)
    for part in active.parts_with(Update):
        updates = call(setting, part, part.updates, updates, params, ctx, onto=updates)
    updates = leaves.keep(trained, updates)
    return LocalState(Variables(optax.apply_updates(params, updates), stats), optimizer, carry.loss_sum + loss, steps)


def _corrected(
    setting: Setting,
    part: Shift,
    grads: PyTree,
    objective: Callable[..., tuple[Array, PyTree]],
    params: PyTree,
    batch: Batch,
    ctx: Context,
) -> PyTree:
    """Returns the gradient that counts after `part.correct`; `objective` is the loss of parameters and a batch."""

    def gradient(at: PyTree) -> PyTree:
        shifted = leaves.shifted_leaves(setting, ctx.trained, params)
        rows = batch._replace(real=part.rows(batch, "correct"))
        point = leaves.select(shifted, restored(setting, part, at, params), params)
        found = leaves.keep(shifted, jax.grad(objective, has_aux=True)(point, rows)[0])
        return call(setting, part, lambda visible: visible, found)

    correct = lambda grads, params, ctx: part.correct(grads, gradient, params, ctx)
    return call(setting, part, correct, grads, params, ctx, onto=grads)
