"""The checks of parts and recipes, and their entry points `check_part` and `check_recipe`."""

import copy
import dataclasses
from typing import Any

import jax
import numpy as np

from fedjax_bal.jax_setup import package_settings, start_jax
from fedjax_bal.metrics import NOT_FINITE
from fedjax_bal.models import check_is_model
from fedjax_bal.optim import AnyOptimizer
from fedjax_bal.options import LocalTraining, Participation
from fedjax_bal.parts import Closing, Part, Server
from fedjax_bal.recipes import Recipe, combine
from fedjax_bal.testing import report, toy
from fedjax_bal.testing.signatures import no_parts, traced, types
from fedjax_bal.testing.workbench import ROUNDS, SEEDS, SILENT, VARIATIONS, Bench, compile_quickly, key_of, one_round
from fedjax_bal.types import Federation, Model, Plan
from fedjax_bal.validate import finite_number, is_number

# Conditions under which the runs don't exercise a check. It couldn't fail then, and is reported as skipped.


def little_training(bench: Bench) -> bool:
    """For some seed, clients train in fewer than two rounds, or in no round in which all parts are active."""
    rounds = [[number for number, plan in enumerate(bench.plans(seed)) if bench.steps(plan).any()] for seed in SEEDS]
    begun = max((part.first_round for part in bench.recipe.parts), default=0)
    return any(len(numbers) < 2 or numbers[-1] < begun for numbers in rounds)


def lone_chains(bench: Bench) -> bool:
    """Every round trains at most one client or chain."""
    return not any((bench.steps(plan).sum(1) > 0).sum() > 1 for plan in bench.plans(SEEDS[0]))


def all_deliver(bench: Bench) -> bool:
    """All selected clients deliver in every round with updates."""
    clients = bench.simulation.federation.num_clients
    plans = [plan for seed in SEEDS for plan in bench.plans(seed) if bench.steps(plan).any()]
    return not any(((plan.clients < clients) & ~plan.delivered).any() for plan in plans)


def all_classes(bench: Bench) -> bool:
    """All clients that train have all classes."""
    plans = [plan for seed in SEEDS for plan in bench.plans(seed)]
    clients = np.concatenate([plan.clients[bench.steps(plan) > 0] for plan in plans])
    return bool(bench.simulation.federation.class_counts[clients].all())


def full_batches(bench: Bench) -> bool:
    """Every batch is full, or the last one of an epoch is dropped."""
    return bench.setting.local.drop_last or not padded_clients(bench).any()


def padded_clients(bench: Bench) -> np.ndarray:
    """Returns whether a client's last batch is used and not full, `Bool[N]`."""
    setting = bench.setting
    sizes = bench.simulation.federation.sizes
    reached = np.minimum(setting.steps_per_epoch(sizes), setting.local_steps(sizes))
    return (sizes % setting.batch_size > 0) & (reached >= -(-sizes // setting.batch_size))


# Checks of a part as a value, before anything runs.


@report.skipped_if(no_parts)
def fields(bench: Bench) -> None:
    """Fields are numbers, or static and hashable; data belongs in the federation."""
    for part in bench.recipe.parts:
        if any(leaf is part for leaf in jax.tree.leaves(part)):
            raise report.FaultError(
                f"{part.slot}: received a class that JAX doesn't know, must be a part: put @part above it"
            )
        for path, leaf in jax.tree_util.tree_leaves_with_path(part):
            if not is_number(leaf) and not isinstance(leaf, bool):
                array = isinstance(leaf, np.ndarray | jax.Array)
                text = f"an array of shape {leaf.shape}" if array else f"{leaf!r} of type {type(leaf).__name__}"
                raise report.FaultError(
                    f"{part.slot}{jax.tree_util.keystr(path)}: received {text}, must be a number: declare what "
                    "decides on shapes or on what is computed with static(...); data belongs into the federation, what "
                    "a client or the server keeps into Memory or Server"
                )
        declared = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
        for field in [field for field in declared if field.metadata.get("static")]:
            value = getattr(part, field.name)
            try:
                hash(value)
            except TypeError:  # a list, or a tuple that holds one
                raise report.FaultError(
                    f"{part.slot}.{field.name}: received {value!r} of type {type(value).__name__}, must be hashable, "
                    "as numbers, names and tuples of them are: a static field is part of the program, not data"
                ) from None


def round_trip(bench: Bench) -> None:
    """A part equals itself after flattening and unflattening as a pytree."""
    for whole in (*bench.recipe.parts, bench.recipe):
        leaves, structure = jax.tree.flatten(whole)
        again = jax.tree.unflatten(structure, leaves)
        if jax.tree.structure(again) != structure or type(again) is not type(whole) or again != whole:
            raise report.FaultError(
                f"{type(whole).__name__}: received {again!r} from the leaves and structure of {whole!r}, must be "
                "equal to it: declare it with @part, and keep all that it knows in fields that compare by value"
            )


# Checks that there is only one program, determined by its arguments.


def one_program(bench: Bench) -> None:
    """One trace serves all rounds, seeds and values of a part's numbers."""

    def copy_of(part: Any) -> Any:
        try:
            return copy.deepcopy(part)
        except TypeError:  # e.g. a part with a module in a static field, which is shared anyway
            return part

    # The parts are copied, so that they are equal but not identical, and each number is halved.
    copied = dataclasses.replace(bench.setting, parts=tuple(map(copy_of, bench.setting.parts)))
    halved = jax.tree.map(lambda leaf: leaf / 2 if is_number(leaf) and isinstance(leaf, float) else leaf, copied)
    _ = bench.base, bench.run(bench.plans(SEEDS[0]), setting=halved)
    if bench.traces != 1:
        raise report.FaultError(
            f"received {bench.traces} traces for {len(SEEDS)} seeds and another value of each number, must be 1: "
            "static fields must compare and hash by value"
        )


@report.skipped_if(little_training)
def repeatable(bench: Bench) -> None:
    """Tracing a round twice gives the same program."""
    key = key_of(SEEDS[0])
    row = bench.row(bench.setting, bench.plans(SEEDS[0])[0], 0)
    given = (bench.setting, key, bench.first_state(bench.setting, key, bench.data[0]), row, *bench.data)
    # Of the base program, jax has kept the trace.
    first, again = (program.lower(*given).as_text() for program in (bench.program, compile_quickly(one_round)))
    if first != again:
        raise report.FaultError(
            "received another program when a round is traced again, must be the same: what a part computes has to "
            "follow from its arguments alone, not from globals or generators of NumPy"
        )


# Checks that results are finite and don't depend on how the recipe is run.


@report.skipped_if(little_training, all_classes)
def finite(bench: Bench) -> None:
    """All values stay finite, even with absent classes, a batch of a single row, and a round without updates."""
    for seed, results in bench.base.items():
        trained = [bool(bench.steps(plan).any()) for plan in bench.plans(seed)]
        leaves = jax.tree_util.tree_leaves_with_path(results.state)
        values = [(f"the state{jax.tree_util.keystr(path)}", leaf) for path, leaf in leaves]
        values += [("the training loss", results.train_loss[trained]), ("the test loss", results.test_loss)]
        faults = [f"{leaf[~np.isfinite(leaf)][0]} in {name}" for name, leaf in values if not np.isfinite(leaf).all()]
        # A broken client is left out of the round, and leaves no other trace.
        broken = np.argwhere(results.broken == NOT_FINITE)
        faults += [f"nan or inf from client {client} in round {number + 1}" for number, client in broken]
        if faults:
            raise report.FaultError(f"received {faults[0]}, must be finite: look for 0 / 0, log 0 and 0 * inf")


@report.skipped_if(little_training, lone_chains)
def cohort_order(bench: Bench) -> None:
    """Results don't depend on the order in which the clients of a round are listed."""
    backwards = [jax.tree.map(lambda leaf: leaf[::-1], plan) for plan in bench.plans(SEEDS[0])]
    remedy = "the position in the cohort means nothing; distinguish chains by their sizes or class counts"
    when = f"when the cohort is listed backwards: {remedy}"
    report.check_same(bench.run(backwards), bench.base[SEEDS[0]], bench.tolerance, when)


@report.skipped_if(little_training, full_batches)
def padded_rows(bench: Bench) -> None:
    """Padded rows of a batch have no effect, nor do rows of clients that don't take part."""
    # Select at most half of the clients: first those whose last batch isn't full, then others that train.
    federation = bench.simulation.federation
    plan = bench.plans(SEEDS[0])[0]
    sizes = federation.sizes
    trains = bench.setting.local_steps(sizes) > 0
    order = np.argsort(np.where(padded_clients(bench), 0, np.where(trains, 1, 2)), kind="stable")
    chosen = order[: min(plan.clients.size, max(1, len(sizes) // 2))]
    clients = np.full(plan.clients.size, len(sizes), plan.clients.dtype)
    clients[: len(chosen)] = chosen
    clients = clients.reshape(plan.clients.shape)
    limits = None if plan.limits is None else np.full_like(plan.limits, bench.setting.most_steps)
    plans: list[Plan] = [plan._replace(clients=clients, delivered=clients < len(sizes), limits=limits)] * ROUNDS
    usual = bench.run(plans)

    remedy = "mask with batch.real before adding up over a batch, and divide by the number of real rows"
    when = f"when rows that are not real change: {remedy}"
    report.check_same(bench.run(plans, setting=bench.disturbed(padding=2.0)), usual, bench.tolerance, when)

    rows = np.concatenate([federation.rows[federation.offsets[c] : federation.offsets[c + 1]] for c in chosen])
    others = np.setdiff1d(federation.rows, rows)
    images = federation.images.copy()
    labels = federation.labels.copy()
    images[others] = 3 - images[others] if images.dtype.kind == "f" else 255 - images[others]
    labels[others] = (labels[others] + 1) % federation.num_classes
    changed = bench.run(plans, federation=federation._replace(images=images, labels=labels))
    if bench.setting.parts_with(Closing):  # in an evaluation, all clients report, also those that took no part
        changed = changed._replace(test_loss=usual.test_loss)
    remedy = "mask with batch.real in over_rows; on the server read auxiliary sets only"
    when = f"when rows of clients that take no part change: {remedy}"
    report.check_same(changed, usual, bench.tolerance, when)


@report.skipped_if(little_training, all_deliver)
def undelivered(bench: Bench) -> None:
    """Clients that don't deliver, and empty places, have no effect on weights, sums or memory."""
    remedy = "leave out chains that don't deliver (cohort.delivered is False, their weight is 0)"
    empty = bench.simulation.federation.num_clients
    plans = [plan._replace(clients=np.where(plan.delivered, plan.clients, empty)) for plan in bench.plans(SEEDS[0])]
    when = f"when clients that don't deliver aren't selected: {remedy}"
    report.check_same(bench.run(plans), bench.base[SEEDS[0]], 0.0, when)
    _check_variation(bench, "places", f"when a round has more empty places: {remedy}")


@report.skipped_if(little_training)
def nothing_arrives(bench: Bench) -> None:
    """A round without updates changes neither the model nor memory, nor server states that only add reports."""
    slots = [part.slot for part in bench.setting.parts_with(Server) if part.adds_reports]
    remedy = "with adds_reports, `update` may only add server.aggregate.reports, which are zeros then"
    for states in bench.states.values():
        # What is sent is kept even if no client of the round trains on it: a client of a later round may.
        kept = [state._replace(downloads=(), server={slot: state.server[slot] for slot in slots}) for state in states]
        report.check_same(kept[SILENT + 1], kept[SILENT], 0.0, f"after a round without updates: {remedy}")


@report.skipped_if(little_training)
def broken_client(bench: Bench) -> None:
    """A client whose update isn't finite is left out of the round, as if it had not delivered."""
    plans = bench.plans(SEEDS[0])
    client = np.bincount(np.concatenate([plan.clients[bench.steps(plan) > 0] for plan in plans])).argmax()
    without = bench.run([plan._replace(delivered=plan.delivered & (plan.clients != client)) for plan in plans])
    broken = bench.run(plans, setting=bench.disturbed(broken=int(client)))
    without.broken[:, client] = [NOT_FINITE * (client in plan.clients[plan.delivered]) for plan in plans]
    remedy = "let nan and inf pass through `deliver`, and read the cohort and the weights from what a method is given"
    report.check_same(broken, without, bench.tolerance, f"when client {client} returns nan: {remedy}")


@report.skipped_if(little_training)
def seeds(bench: Bench) -> None:
    """Two seeds in one `vmap` give the same results as two runs."""
    _check_variation(bench, "seeds", "between a vmap over two seeds and two runs: use pure functions")


@report.skipped_if(little_training, lone_chains)
def lanes(bench: Bench) -> None:
    """Clients one after another (`map`) and several at a time (`vmap`) give the same results."""
    remedy = "use pure functions of one client's arguments"
    _check_variation(bench, "lanes", f"between map and vmap: {remedy}")


@report.skipped_if(little_training)
def longer_rows(bench: Bench) -> None:
    """Results don't depend on the padded size of clients."""
    _check_variation(bench, "length", "when there is room for larger clients: use no padded shape")


@report.skipped_if(little_training, lone_chains)
def devices(bench: Bench) -> None:
    """One device and two devices give the same results."""
    if jax.device_count() < 2:
        raise report.NotApplicableError("jax has one device; more CPU devices are set with jax_num_cpu_devices")
    _check_variation(bench, "devices", "between one device and two: use no collectives")


@report.skipped_if(little_training)
def all_at_once(bench: Bench) -> None:
    """All variations combined (places, seeds, lanes, length, devices) give the same results."""
    gap = bench.effect(*_possible())
    if gap and any(bench.effect(name) for name in _possible()):
        raise report.NotApplicableError("one of them alone makes a difference")
    if gap:
        raise report.FaultError(f"received {gap} where two seeds, vmap, longer rows and more places meet")


def _possible() -> tuple[str, ...]:
    """Returns the variations that this machine supports."""
    return VARIATIONS if jax.device_count() > 1 else VARIATIONS[:-1]


def _check_variation(bench: Bench, name: str, when: str) -> None:
    """Runs a variation alone only if all of them combined change the result, which saves compiling for most parts."""
    gap = bench.effect(*_possible()) and bench.effect(name)
    if gap:
        raise report.FaultError(f"received {gap} {when}")


FORM = ((fields,), (round_trip,))
STAGES = (
    *FORM,
    (traced,),
    (types,),
    (one_program,),
    (
        finite, repeatable, cohort_order, padded_rows, undelivered, nothing_arrives, broken_client,
        seeds, lanes, longer_rows, devices, all_at_once,
    ),
)  # fmt: skip
"""Checks in stages; a stage runs only if the previous ones passed."""


def check_part(part: Part, *, beside: Recipe | None = None, **options: Any) -> report.ConformanceReport:
    """Checks that a part composes: how, in what order and with which parts it runs doesn't change its results.

    Args:
        part: the part.
        beside: a recipe that the part needs; None for none.
        **options: as in `check_recipe`, which also documents the result and the exceptions.

    Example:
        >>> from fedjax_bal.parts import Proximal
        >>> check_part(Proximal(0.1)).failed
        ()
    """
    if not isinstance(part, Part):
        raise ValueError(
            f"part: received {part!r:.80}, must be an object of a class with @part, as parts.Proximal(0.1)"
        )
    alone = Recipe(part.slot, (part,))
    recipe = alone if beside is None else dataclasses.replace(combine(beside, alone), name=part.slot)
    return check_recipe(recipe, **options)


@package_settings()
def check_recipe(
    recipe: Recipe,
    *,
    model: Model | None = None,
    federation: Federation | None = None,
    test: tuple[Any, Any] | None = None,
    local: LocalTraining | None = None,
    participation: Participation | None = None,
    server_optimizer: AnyOptimizer | None = None,
    tolerance: float = 2e-6,
) -> report.ConformanceReport:
    """Checks that a recipe's results don't depend on how and where it is run.

    It trains a tiny network on eight tiny clients: some have a single class or a single row, some are unavailable, some
    don't deliver, one round has no updates, and in one run a client returns nan. All runs leave out clients whose
    update isn't finite, as `Execution(broken_clients="exclude")` does. These defaults exercise every check, except
    those of parts if the recipe has none, and the one that needs two devices. With other arguments, a check that the
    runs never exercise is reported as skipped. Nearly all the time is compilation: for the package's recipes 3 to 9 s
    of CPU time each, more for larger models.

    Args:
        recipe: the recipe.
        model: a model in place of the tiny one, together with a federation and a test set.
        federation: a federation in place of the tiny one.
        test: images and labels in place of the tiny test set.
        local: local training in place of batches of 4 rows and SGD.
        participation: participation in place of five or six clients per round, some unavailable, some not delivering.
        server_optimizer: as in `fedjax_bal.simulate`.
        tolerance: largest difference due to rounding, relative to a leaf's largest number or to 1.

    Returns:
        All checks, none of which failed; `skipped` lists those that could not be made or were not exercised.

    Raises:
        ConformanceError: a check failed; the message lists each failure with its remedy.
        ValueError: the recipe rejects a setting.

    Example:
        >>> from fedjax_bal import recipes
        >>> check_recipe(recipes.fedavg()).failed
        ()
    """
    recipe = combine(recipe)  # rejects what isn't a recipe
    start_jax()
    model = toy.network() if model is None else model
    check_is_model(model)
    data = (model, federation or toy.federation(), test or toy.test_set())
    bench = Bench(recipe, finite_number("tolerance", tolerance), *data, local, participation, server_optimizer)
    try:
        bench.plans(SEEDS[0])
    except Exception as error:
        # A setting that the recipe rejects is the caller's mistake, unless a part is declared incorrectly.
        if isinstance(error, ValueError) and all(
            report.run_check(check, bench)[0] != report.FAILED for (check,) in FORM
        ):
            raise
    return report.run_checks(STAGES, recipe.name, bench)
