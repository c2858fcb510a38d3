"""The check that padding counts for nothing: rows of a batch that are not real, and rows of other clients."""

import dataclasses

import numpy as np

from fedjax_bal.parts import Closing
from fedjax_bal.testing.coverage import needs, padded_clients, padding, training
from fedjax_bal.testing.messages import difference
from fedjax_bal.testing.observers import Padding
from fedjax_bal.testing.workbench import ROUNDS, SEEDS, Bench, Observed
from fedjax_bal.types import Federation, Plan


@needs(training, padding)
def padded_rows(bench: Bench) -> str | None:
    """Rows of a batch that are not real count for nothing, nor do rows of clients that take no part."""
    plan = _padded_plan(bench)
    seen = bench.run([plan] * ROUNDS)
    setting = dataclasses.replace(bench.setting, parts=(Padding(2.0), *bench.setting.parts[1:]))
    changed = difference(bench.run([plan] * ROUNDS, setting=setting), seen, bench.tolerance)
    if changed:
        remedy = "mask with batch.real before adding up over a batch, and divide by the number of real rows"
        return f"received {changed} when rows that are not real change, must be none: {remedy}"
    return _describe_foreign_effect(bench, plan, seen)


def _padded_plan(bench: Bench) -> Plan:
    """A round of at most half of the clients: first those whose last batch isn't full, then others that train."""
    sizes, plan = np.diff(bench.simulation.federation.offsets), bench.plans(SEEDS[0])[0]
    trains = bench.setting.local_steps(sizes) > 0
    first = np.argsort(np.where(padded_clients(bench), 0, np.where(trains, 1, 2)), kind="stable")
    chosen = first[: min(plan.clients.size, max(1, len(sizes) // 2))]
    clients = np.full(plan.clients.size, len(sizes), plan.clients.dtype)
    clients[: len(chosen)] = chosen
    clients = clients.reshape(plan.clients.shape)
    limits = None if plan.limits is None else np.full_like(plan.limits, bench.setting.most_steps)
    return plan._replace(clients=clients, delivered=clients < len(sizes), limits=limits)


def _describe_foreign_effect(bench: Bench, plan: Plan, seen: Observed) -> str | None:
    """Describes the effect of changing rows of absent clients: those next to a client's own, or any others."""
    found = _effect_of_other_rows(bench, plan, seen, _foreign_rows(bench, plan))
    if not found:
        return None
    beside = _rows_after(bench, plan)
    elsewhere = np.setdiff1d(_foreign_rows(bench, plan), beside)
    if _effect_of_other_rows(bench, plan, seen, elsewhere):
        remedy = "a server part may read the auxiliary sets; of clients' rows use what these report"
        return f"received {found} when rows of clients that take no part change, must be none: {remedy}"
    remedy = "mask with batch.real in over_rows and wherever rows are gathered"
    return f"received {found} when rows behind a client's own change, must be none: {remedy}"


def _effect_of_other_rows(bench: Bench, plan: Plan, seen: Observed, rows: np.ndarray) -> str | None:
    other = bench.run([plan] * ROUNDS, federation=_change_rows(bench.simulation.federation, rows))
    if bench.setting.parts_with(Closing):  # in an evaluation it hears those, too, who took no part
        other = other._replace(test_loss=seen.test_loss)
    return difference(other, seen, bench.tolerance)


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
