"""Checks that the results of a recipe don't depend on how it is run."""

import copy
import dataclasses
from typing import Any

import jax
import numpy as np

from fedjax_bal.engine.device import Setting
from fedjax_bal.testing.compare import difference, odd_value
from fedjax_bal.testing.coverage import (
    absent_clients,
    needs,
    odd_clients,
    padding,
    training,
    two_chains,
    two_devices,
    unequal_lanes,
)
from fedjax_bal.testing.observers import Padding
from fedjax_bal.testing.outcome import NotApplicableError
from fedjax_bal.testing.workbench import ROUNDS, SEEDS, Bench
from fedjax_bal.types import Federation, Plan
from fedjax_bal.validate import is_number


def one_program(bench: Bench) -> str | None:
    """One trace serves all rounds, seeds and values of a part's numbers."""
    bench.base  # noqa: B018
    bench.run(bench.plans(SEEDS[0]), setting=jax.tree.map(_halve, _copy_parts(bench.setting)))
    if bench.traces == 1:
        return None
    return (
        f"received {bench.traces} traces for {len(SEEDS)} seeds and another value of each number, must be 1: static "
        "fields must compare and hash by value"
    )


@needs(training, odd_clients)
def finite(bench: Bench) -> str | None:
    """All stays finite, with absent classes, a batch of a single row, and a round in which nothing arrives."""
    for seed, seen in bench.base.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(seen.state):
            if not np.isfinite(leaf).all():
                at = f"the state{jax.tree_util.keystr(path)}"
                return f"received {odd_value(leaf)} in {at}, must be finite: look for 0 / 0, log 0 and 0 * inf"
        trained = [bool(bench.steps(plan).any()) for plan in bench.plans(seed)]
        for name, losses in (("training", seen.train_loss[trained]), ("test", seen.test_loss)):
            if not np.isfinite(losses).all():
                return f"received a {name} loss of {odd_value(losses)}, must be finite: look for 0 / 0 and log 0"
    return None


@needs(training)
def jit(bench: Bench) -> str | None:
    """Compiled and uncompiled, a round comes to the same."""
    if bench.uncompiled_case is None:
        raise NotApplicableError(
            f"with seed {SEEDS[0]} no round is fit for it, in which somebody trains after others have: pass an "
            "availability, a delivery or a selector by which more train"
        )
    found = bench.uncompiled_difference(bench.uncompiled_case)
    remedy = "what a part computes has to follow from its arguments alone, not from globals or generators of NumPy"
    return found and f"received {found} between compiled and uncompiled, must be none: {remedy}"


@needs(training, two_chains)
def cohort_order(bench: Bench) -> str | None:
    """The order in which the clients of a round are listed changes nothing."""
    backwards = [jax.tree.map(lambda leaf: leaf[::-1], plan) for plan in bench.plans(SEEDS[0])]
    found = difference(bench.run(backwards), bench.base[SEEDS[0]], bench.tolerance)
    remedy = "a place in the cohort means nothing; tell chains apart by their sizes or class counts"
    return found and f"received {found} when the cohort is listed backwards, must be none: {remedy}"


@needs(training, padding)
def padded_rows(bench: Bench) -> str | None:
    """Rows of a batch that are not real count for nothing, nor do rows of clients that take no part."""
    plan = bench.padded_plan
    seen = bench.run([plan] * ROUNDS)
    setting = dataclasses.replace(bench.setting, parts=tuple(map(_with_other_padding, bench.setting.parts)))
    changed = difference(bench.run([plan] * ROUNDS, setting=setting), seen, bench.tolerance)
    if changed:
        remedy = "mask with batch.real before adding up over a batch, and divide by the number of real rows"
        return f"received {changed} when rows that are not real change, must be none: {remedy}"
    return _describe_foreign_effect(bench, plan, seen)


@needs(training, absent_clients)
def undelivered(bench: Bench) -> str | None:
    """Clients that don't deliver, and places that stay empty, leave no trace in weights, sums or memory."""
    changed = _describe_memory_changes(bench)
    if changed:
        return f"received {changed} of clients that did not deliver, must be none: only `remember` may change memory"
    remedy = "leave out chains that don't deliver (cohort.delivered is False, their weight is 0)"
    return _vary(bench, "places", f"when a round has more empty places, must be none: {remedy}")


@needs(training)
def seeds(bench: Bench) -> str | None:
    """Two seeds in one `vmap` come to the same as two runs."""
    return _vary(bench, "seeds", "between a vmap over two seeds and two runs, must be none: use pure functions")


@needs(training, unequal_lanes)
def lanes(bench: Bench) -> str | None:
    """Clients one after another (`map`) and several at a time (`vmap`) come to the same."""
    return _vary(bench, "lanes", "between map and vmap, must be none: use pure functions of one client's arguments")


@needs(training)
def longer_rows(bench: Bench) -> str | None:
    """Room for far larger clients changes nothing."""
    return _vary(bench, "length", "when there is room for larger clients, must be none: use no padded shape")


@needs(training, two_devices)
def devices(bench: Bench) -> str | None:
    """One device and two come to the same."""
    if jax.device_count() < 2:
        raise NotApplicableError("jax has one device; more CPU devices are set with jax_num_cpu_devices")
    return _vary(bench, "devices", "between one device and two, must be none: use no collectives")


@needs(training)
def all_at_once(bench: Bench) -> str | None:
    """The last five at once come to the same too."""
    found = bench.difference_of_all
    if found and any(bench.difference_of(name) for name in bench.variations):
        raise NotApplicableError("one of them alone makes a difference")
    return found and f"received {found} where two seeds, vmap, longer rows and more places meet, must be none"


def _vary(bench: Bench, name: str, remedy: str) -> str | None:
    """Runs one variation alone only if all of them at once change the result, so that most parts need one program."""
    found = bench.difference_of_all and bench.difference_of(name)
    return f"received {found} {remedy}" if found else None


def _halve(number: Any) -> Any:
    return number / 2 if is_number(number) and isinstance(number, float) else number


def _copy_parts(setting: Setting) -> Setting:
    """Copies the parts, so that they are equal to the given ones but not identical."""

    def copy_of(part: Any) -> Any:
        try:
            return copy.deepcopy(part)
        except TypeError:  # such as one with a module in a static field, which is shared anyway
            return part

    return dataclasses.replace(setting, parts=tuple(map(copy_of, setting.parts)))


def _with_other_padding(part: Any) -> Any:
    return Padding(2.0) if isinstance(part, Padding) else part


def _describe_foreign_effect(bench: Bench, plan: Plan, seen: Any) -> str | None:
    """Describes the effect of changing rows of absent clients: those next to a client's own, or any others."""
    found = difference(_run_with_other_rows(bench, plan, _foreign_rows(bench, plan)), seen, bench.tolerance)
    if not found:
        return None
    beside = _rows_after(bench, plan)
    elsewhere = np.setdiff1d(_foreign_rows(bench, plan), beside)
    if difference(_run_with_other_rows(bench, plan, elsewhere), seen, bench.tolerance):
        remedy = "a server part may read the auxiliary sets; of clients' rows use what these report"
        return f"received {found} when rows of clients that take no part change, must be none: {remedy}"
    remedy = "mask with batch.real in over_rows and wherever rows are gathered"
    return f"received {found} when rows behind a client's own change, must be none: {remedy}"


def _run_with_other_rows(bench: Bench, plan: Plan, rows: np.ndarray) -> Any:
    return bench.run([plan] * ROUNDS, federation=_change_rows(bench.simulation.federation, rows))


def _foreign_rows(bench: Bench, plan: Plan) -> np.ndarray:
    """Rows that no delivering client of a plan owns."""
    federation = bench.simulation.federation
    spans = [federation.rows[federation.offsets[c] : federation.offsets[c + 1]] for c in plan.clients[plan.delivered]]
    return np.setdiff1d(federation.rows, np.concatenate([federation.rows[:0], *spans]))


def _rows_after(bench: Bench, plan: Plan) -> np.ndarray:
    """Rows after a delivering client's own that its batches may reach."""
    federation, room = bench.simulation.federation, bench.setting.row_length
    ends = [federation.offsets[c] + room for c in plan.clients[plan.delivered]]
    starts = [federation.offsets[c + 1] for c in plan.clients[plan.delivered]]
    spans = [federation.rows[start:end] for start, end in zip(starts, ends, strict=True)]
    return np.concatenate([federation.rows[:0], *spans])


def _change_rows(federation: Federation, rows: np.ndarray) -> Federation:
    """Changes the images and labels of some rows."""
    images, labels = federation.images.copy(), federation.labels.copy()
    images[rows] = 3 - images[rows] if images.dtype.kind == "f" else 255 - images[rows]
    labels[rows] = (labels[rows] + 1) % federation.num_classes
    return federation._replace(images=images, labels=labels)


def _describe_memory_changes(bench: Bench) -> str | None:
    """Describes changes of the memory of clients that did not deliver; None without any."""
    for seed, states in bench.states.items():
        for plan, before, after in zip(bench.plans(seed), states, states[1:], strict=False):
            absent = np.setdiff1d(np.arange(bench.simulation.federation.num_clients), plan.clients[plan.delivered])
            rows = lambda state, who=absent: jax.tree.map(lambda leaf: leaf[who], state.memory)
            changed = difference(rows(after), rows(before), 0.0)
            if changed:
                return changed
    return None
