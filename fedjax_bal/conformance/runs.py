"""Checks on what runs come to: whatever way a recipe is run, it computes the same."""

from typing import Any

import jax
import numpy as np

from fedjax_bal.checks import is_number
from fedjax_bal.conformance.compare import difference, odd_value
from fedjax_bal.conformance.outcome import NotApplicableError
from fedjax_bal.conformance.workbench import ROUNDS, SEEDS, Workbench
from fedjax_bal.types import Federation, Plan


def one_program(bench: Workbench) -> str | None:
    """One trace serves all rounds, seeds and values of a part's numbers."""
    bench.base  # noqa: B018
    bench.run(bench.plans(SEEDS[0]), setting=jax.tree.map(_halved, bench.simulation.setting))
    if bench.traces == 1:
        return None
    return (
        f"received {bench.traces} traces for {len(SEEDS)} seeds and another value of each number, must be 1: static "
        "fields must compare and hash by value"
    )


def finite(bench: Workbench) -> str | None:
    """All stays finite, with absent classes, a client of a single row, and a round in which nothing arrives."""
    for seed, seen in bench.base.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(seen.state):
            if not np.isfinite(leaf).all():
                at = f"the state{jax.tree_util.keystr(path)}"
                return f"received {odd_value(leaf)} in {at}, must be finite: look for 0 / 0, log 0 and 0 * inf"
        trained = [_steps(bench, plan) > 0 for plan in bench.plans(seed)]
        for name, losses in (("training", seen.train_loss[trained]), ("test", seen.test_loss)):
            if not np.isfinite(losses).all():
                return f"received a {name} loss of {odd_value(losses)}, must be finite: look for 0 / 0 and log 0"
    return None


def jit(bench: Workbench) -> str | None:
    """Compiled and uncompiled, a round comes to the same."""
    plans = bench.plans(SEEDS[0])
    found = difference(bench.run_eagerly(plans), bench.run(plans, rounds=1).state, bench.tolerance)
    remedy = "what a part computes has to follow from its arguments alone, not from globals or generators of NumPy"
    return found and f"received {found} between compiled and uncompiled, must be none: {remedy}"


def cohort_order(bench: Workbench) -> str | None:
    """The order in which the clients of a round are listed changes nothing."""
    backwards = [jax.tree.map(lambda leaf: leaf[::-1], plan) for plan in bench.plans(SEEDS[0])]
    found = difference(bench.run(backwards), bench.base[SEEDS[0]], bench.tolerance)
    remedy = "a place in the cohort means nothing; tell chains apart by their sizes or class counts"
    return found and f"received {found} when the cohort is listed backwards, must be none: {remedy}"


def padded_rows(bench: Workbench) -> str | None:
    """Rows of a batch that are not real count for nothing: rows of other clients stand there, and may be any."""
    federation = bench.simulation.federation
    plan = _every_second(bench.plans(SEEDS[0])[0], federation.num_clients)
    strangers = _with_other_strangers(federation, plan.clients[plan.delivered])
    seen, other = (bench.run([plan] * ROUNDS, federation=rows) for rows in (federation, strangers))
    found = difference(other, seen, bench.tolerance)
    remedy = "mask with batch.real before adding up over a batch, and divide by the number of real rows"
    return found and f"received {found} when rows that are not real change, must be none: {remedy}"


def undelivered(bench: Workbench) -> str | None:
    """Clients that don't deliver, and places that stay empty, leave no trace in weights, sums or memory."""
    changed = _memory_of_absent(bench)
    if changed:
        return f"received {changed} of clients that never delivered, must be none: only `remember` may change memory"
    remedy = "leave out chains that don't deliver (cohort.delivered is False, their weight is 0)"
    return _varied(bench, "places", f"when a round has more empty places, must be none: {remedy}")


def seeds(bench: Workbench) -> str | None:
    """Two seeds in one `vmap` come to the same as two runs."""
    return _varied(bench, "seeds", "between a vmap over two seeds and two runs, must be none: use pure functions")


def lanes(bench: Workbench) -> str | None:
    """Clients one after another (`map`) and several at a time (`vmap`) come to the same."""
    return _varied(bench, "lanes", "between map and vmap, must be none: use pure functions of one client's arguments")


def longer_rows(bench: Workbench) -> str | None:
    """Room for far larger clients changes nothing."""
    return _varied(bench, "length", "when there is room for larger clients, must be none: use no padded shape")


def devices(bench: Workbench) -> str | None:
    """One device and two come to the same."""
    if jax.device_count() < 2:
        raise NotApplicableError("jax has one device; more CPU devices are set with jax_num_cpu_devices")
    return _varied(bench, "devices", "between one device and two, must be none: use no collectives")


def all_at_once(bench: Workbench) -> str | None:
    """The last five at once come to the same too."""
    found = bench.difference_of_all
    if found and any(bench.difference_of(name) for name in bench.variations):
        raise NotApplicableError("one of them alone makes a difference")
    return found and f"received {found} where two seeds, vmap, longer rows and more places meet, must be none"


def _varied(bench: Workbench, name: str, remedy: str) -> str | None:
    """Looks at one variation alone only where all of them at once make a difference: most parts need one program."""
    found = bench.difference_of_all and bench.difference_of(name)
    return f"received {found} {remedy}" if found else None


def _steps(bench: Workbench, plan: Plan) -> int:
    """Local steps of all who deliver, in an epoch."""
    sizes = np.diff(bench.simulation.federation.offsets)
    return int(bench.simulation.setting.steps_per_epoch(sizes[plan.clients[plan.delivered]]).sum())


def _halved(number: Any) -> Any:
    return number / 2 if is_number(number) and isinstance(number, float) else number


def _every_second(plan: Plan, num_clients: int) -> Plan:
    even = np.arange(len(plan.clients))[:, None] % 2 == 0
    return plan._replace(delivered=(plan.clients < num_clients) & even)


def _with_other_strangers(federation: Federation, clients: np.ndarray) -> Federation:
    """The federation with other images and labels in all rows that these clients don't own."""
    spans = [federation.rows[federation.offsets[c] : federation.offsets[c + 1]] for c in clients]
    strange = np.setdiff1d(federation.rows, np.concatenate(spans))
    if not strange.size:
        raise NotApplicableError("every row belongs to the clients that train; use a federation with more clients")
    images, labels = federation.images.copy(), federation.labels.copy()
    images[strange] = 3 - images[strange] if images.dtype.kind == "f" else 255 - images[strange]
    labels[strange] = (labels[strange] + 1) % federation.num_classes
    return federation._replace(images=images, labels=labels)


def _memory_of_absent(bench: Workbench) -> str | None:
    """How the memory of clients that never delivered differs from what it was at first."""
    plans = bench.plans(SEEDS[0])
    here = np.concatenate([plan.clients[plan.delivered] for plan in plans])
    absent = np.setdiff1d(np.arange(bench.simulation.federation.num_clients), here)
    first, last = (bench.run(plans, rounds=rounds).state.memory for rounds in (0, ROUNDS))
    rows = lambda memory: jax.tree.map(lambda leaf: leaf[absent], memory)
    return difference(rows(last), rows(first), 0.0)
