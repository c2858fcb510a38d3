"""Checks that the results of a recipe are finite and don't depend on how it is run."""

import jax
import numpy as np

from fedjax_bal.testing.coverage import absent_classes, absent_clients, needs, training, two_chains
from fedjax_bal.testing.messages import difference, odd_value
from fedjax_bal.testing.outcome import NotApplicableError
from fedjax_bal.testing.variations import difference_of, possible
from fedjax_bal.testing.workbench import SEEDS, Bench


@needs(training, absent_classes)
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


@needs(training, two_chains)
def cohort_order(bench: Bench) -> str | None:
    """The order in which the clients of a round are listed changes nothing."""
    backwards = [jax.tree.map(lambda leaf: leaf[::-1], plan) for plan in bench.plans(SEEDS[0])]
    found = difference(bench.run(backwards), bench.base[SEEDS[0]], bench.tolerance)
    remedy = "a place in the cohort means nothing; tell chains apart by their sizes or class counts"
    return found and f"received {found} when the cohort is listed backwards, must be none: {remedy}"


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


@needs(training, two_chains)
def lanes(bench: Bench) -> str | None:
    """Clients one after another (`map`) and several at a time (`vmap`) come to the same."""
    return _vary(bench, "lanes", "between map and vmap, must be none: use pure functions of one client's arguments")


@needs(training)
def longer_rows(bench: Bench) -> str | None:
    """Room for far larger clients changes nothing."""
    return _vary(bench, "length", "when there is room for larger clients, must be none: use no padded shape")


@needs(training, two_chains)
def devices(bench: Bench) -> str | None:
    """One device and two come to the same."""
    if jax.device_count() < 2:
        raise NotApplicableError("jax has one device; more CPU devices are set with jax_num_cpu_devices")
    return _vary(bench, "devices", "between one device and two, must be none: use no collectives")


@needs(training)
def all_at_once(bench: Bench) -> str | None:
    """The last five at once come to the same too."""
    found = difference_of(bench, *possible())
    if found and any(difference_of(bench, name) for name in possible()):
        raise NotApplicableError("one of them alone makes a difference")
    return found and f"received {found} where two seeds, vmap, longer rows and more places meet, must be none"


def _vary(bench: Bench, name: str, remedy: str) -> str | None:
    """Runs one variation alone only if all of them at once change the result, so that most parts need one program."""
    found = difference_of(bench, *possible()) and difference_of(bench, name)
    return f"received {found} {remedy}" if found else None


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
