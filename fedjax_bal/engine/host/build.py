"""From a recipe and a federation to a trained model: the library's front door."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.data import without_lone_rows
from fedjax_bal.engine.device import VALIDATION, Layout, LocalTraining, Setting, TestSet, at_precision, chunked
from fedjax_bal.engine.host.compatibility import (
    check_clients,
    check_first_round,
    check_local_test_images,
    check_server,
    check_shapes,
    choose_drawing,
    choose_rounds_per_dispatch,
    choose_selector,
    local_training_length,
    the_only_one,
)
from fedjax_bal.engine.host.faults import fault_policy as broken_policy
from fedjax_bal.engine.host.simulation import Simulation
from fedjax_bal.engine.host.strategy import device_count, lay_out, resolve_strategy
from fedjax_bal.metrics import SHOTS, EarlyStopping, Shots, shot_groups
from fedjax_bal.optim import Optimizer, optimizer
from fedjax_bal.parts import BATCH_STATISTICS, RunSetting
from fedjax_bal.recipes import Recipe, combine
from fedjax_bal.selection import Choice, Presence, Selector, Speed, Trace, always
from fedjax_bal.types import Federation, Model, Variables
from fedjax_bal.validate import one_of, whole_number

TRAFFICS = ("paper", "exact")
LONE_ROWS = ("auto", "keep", "drop")


class Result(NamedTuple):
    """What a run leaves behind.

    Attributes:
        variables: the global model after the last round.
        history: a dict of metrics for each evaluated round.
        confusion: `Int[C, C]` of the last evaluation, true class by predicted class.
    """

    variables: Variables
    history: list[dict[str, Any]]
    confusion: np.ndarray


def build(
    recipe: Recipe,
    model: Model,
    federation: Federation,
    test: tuple[Any, Any] | TestSet,
    *,
    rounds: int,
    clients_per_round: int | None = None,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    batch_size: int = 50,
    drop_last: bool = False,
    batches_per_epoch: int | None = None,
    local_optimizer: Optimizer | None = None,
    server_optimizer: Optimizer | None = None,
    drawing: str | None = None,
    selector: Selector | Choice | None = None,
    availability: Presence | Trace | None = None,
    delivery: Presence | Trace | None = None,
    speed: Speed | None = None,
    batch_statistics: str = "average",
    lone_rows: str = "auto",
    evaluate_every: int = 1,
    update_diversity: bool = False,
    local_accuracy: bool = False,
    local_test_images: int = 0,
    shots: Shots = SHOTS,
    traffic: str = "paper",
    rounds_per_dispatch: str | int = 1,
    strategy: str = "auto",
    devices: str | int = "auto",
    chunk: str | int = "auto",
    client_memory: str = "auto",
    precision: str = "float32",
    broken_clients: str = "raise",
    clip_factor: float = 10.0,
    huge_factor: float | None = 100.0,
    enlarge: Callable[[Federation, Recipe], Federation] | None = None,
) -> Simulation:
    """Puts a simulation together and checks that its pieces fit; nothing is compiled yet.

    Args:
        recipe: the method.
        model: the model, from `fedjax_bal.models.build`.
        federation: the federation, from `fedjax_bal.data.federate`.
        test: images `[T, H, W, K]` and labels `[T]`, or both as `chunked` cuts them, for several simulations to share.
        rounds: communication rounds, at least 1.
        clients_per_round: the cohort's size; all clients by default. Not with a ready-made selector.
        local_epochs: E, at least 1; 1 unless `local_steps` is given.
        local_steps: in its place K, the steps of every visit, however many rows a client has: a small one goes through
            its rows again and again.
        batch_size: B, at least 1.
        drop_last: leave out the last short batch of an epoch.
        batches_per_epoch: the most batches of an epoch, of rows drawn anew each time; None for all of a client's rows.
        local_optimizer: by default SGD with learning rate 0.01.
        server_optimizer: by default what the recipe says, or else plain averaging.
        drawing: "epochs" (each row once an epoch, the default) or "replacement".
        selector: ready-made, or a choice of one by name; by default what the recipe says, or else `uniform`.
        availability: who is there before selection; by default everybody.
        delivery: who comes back after training; by default everybody.
        speed: how fast clients compute, and what becomes of those who are late, from `fedjax_bal.selection.speed`; by
            default nobody looks at the clock.
        batch_statistics: where running statistics of batch normalisation come from when a client begins: "average",
            from the global model, whose are the mean of the clients'; "local", from the client's last visit;
            "server_reset", mean 0 and variance 1. The global model always has the mean of those delivered.
        lone_rows: whether a client whose last batch of an epoch would be a single row loses that row for good, so that
            no batch statistics come of one image: "drop", "keep", or "auto", drop it for models with batch
            normalisation.
        evaluate_every: rounds between evaluations.
        update_diversity: report how far apart the updates of each round lie (ReBaFL eq. 24), which takes a few more
            passes over the parameters.
        local_accuracy: report how well each client's own model, after training, does on the client's rows.
        local_test_images: report, in each evaluated round, how well these models do on so many of the test images on
            average, which takes a forward pass over them for each client; 0 for not.
        shots: which classes count as many-, medium- and few-shot, by the federation's training images of each.
        traffic: how the clients of a mediator count that goes through them several times: "paper", once, as Astraea's
            formula has it; "exact", as often as models are exchanged.
        rounds_per_dispatch: rounds in one compiled program; "auto" for 5, or 1 with a selector that looks at each
            round's outcome.
        strategy: how clients are executed, not what they compute: "map", one after another on each device; "vmap",
            several at a time; "auto", the former on CPUs and the latter on accelerators.
        devices: how many of the devices that jax has share the work; "auto" for all.
        chunk: clients at a time on each device under "vmap"; "auto" for as many as waste little and fit into memory.
        client_memory: where what clients remember is kept, "device" or "host"; "auto" for the devices where it fits.
        precision: in which the model computes: "float32"; "tensorfloat32", for matrix products on devices that have
            it; or "bfloat16". Parameters, losses and sums over clients stay float32.
        broken_clients: what becomes of clients whose update (parameters, batch statistics, memory, reports, probes) is
            not finite, is known to be of an earlier round, or is huge: "raise", the run ends; "exclude", each round is
            as if they had not delivered, to the same bits, for which a dispatch is done again from what it began with;
            "clip", that too, but updates whose norm is more than `clip_factor` times the median of their round are
            scaled down to that. The last two keep the state twice.
        clip_factor: for "clip", at least 1.
        huge_factor: for "raise" and "exclude", an update is huge that leads to parameters whose norm is more than so
            many times the median of the round's, and more than that number itself; at least 1; None for no such bound.
            Of chains that go through their clients several times, the first pass is looked at.
        enlarge: makes of a federation what a recipe's parts make of it, for simulations to share what it returns.

    Returns:
        The simulation.

    Raises:
        ValueError: values that are out of range or don't fit together; the message says which, and what to do.

    Example:
        >>> import numpy as np
        >>> from fedjax_bal import data, models, recipes
        >>> images, labels = np.zeros((6, 2, 2, 1), np.uint8), np.array([0, 1, 0, 1, 0, 1])
        >>> federation = data.federate(images, labels, [np.arange(4), np.arange(4, 6)], num_classes=2)
        >>> model = models.build("mlp", 2, (2, 2, 1))
        >>> simulation = build(recipes.fedavg(), model, federation, (images, labels), rounds=3, batch_size=2)
        >>> simulation.advance(0, simulation.init(0)).client_updates
        2
    """
    counts = {"rounds": rounds, "batch_size": batch_size, "evaluate_every": evaluate_every}
    for name, value in counts.items():
        whole_number(name, value)
    if batches_per_epoch is not None:
        whole_number("batches_per_epoch", batches_per_epoch)
    epochs, steps = local_training_length(local_epochs, local_steps)
    one_of("traffic", traffic, TRAFFICS)
    test = test if isinstance(test, TestSet) else chunked(*test)
    one_of("batch_statistics", batch_statistics, BATCH_STATISTICS)
    one_of("lone_rows", lone_rows, LONE_ROWS)
    recipe = combine(recipe)  # a recipe that was put together by hand is refused for the same reasons
    groups = shot_groups(np.asarray(federation.class_counts).sum(0), shots)
    policy = broken_policy(broken_clients, clip_factor, huge_factor)
    for part in recipe.parts:
        model = part.bind(model)
    recipe = dataclasses.replace(recipe, parts=(*recipe.parts, *BATCH_STATISTICS[batch_statistics]))
    local = local_optimizer or optimizer("sgd", 0.01)
    drops = lone_rows == "drop" or (lone_rows == "auto" and _single_row_batches(model, drop_last))
    trimmed = (lambda given: without_lone_rows(given, batch_size)) if drops else (lambda given: given)
    asked = RunSetting(recipe.parts, model, trimmed(federation), local, bool(recipe.carried), rounds)
    for part in recipe.parts:
        part.check(asked)
        check_first_round(part, rounds)
    federation = trimmed((enlarge or _prepare_federation)(federation, recipe))
    check_shapes(model, federation, test)
    check_clients(availability, delivery, speed, federation.num_clients)
    model = at_precision(model, precision)
    selector = choose_selector(recipe, selector, clients_per_round, federation)
    together = choose_rounds_per_dispatch(rounds_per_dispatch, selector)
    sizes = np.diff(federation.offsets)
    largest = int(sizes.max())
    asked_batch_size = batch_size
    batch_size = batch_size if drop_last else min(batch_size, largest)  # larger than anybody can fill is padding
    if chunk != "auto":
        whole_number("execution.chunk", chunk)
    server = the_only_one("server_optimizer", recipe.server_optimizer, server_optimizer) or optimizer("sgd", 1.0)
    check_server(server)
    setting = Setting(
        parts=recipe.parts,
        local=LocalTraining(
            optimizer=local,
            epochs=epochs,
            steps=steps,
            batch_size=batch_size,
            drop_last=drop_last,
            batches_per_epoch=batches_per_epoch,
            drawing=choose_drawing(recipe, drawing),
        ),
        server=server,
        model=model,
        passes=selector.passes,
        carried=bool(recipe.carried),
        max_size=largest,
        diversity=update_diversity,
        local_accuracy=local_accuracy,
        local_test_images=check_local_test_images(local_test_images, test),
        test_images=int(np.sum(test.real)),
        layout=Layout(resolve_strategy(strategy), device_count(devices)),
        precision=precision,
    )
    setting = _laid_out(setting, sizes, selector, None if chunk == "auto" else int(chunk))
    if speed is not None:
        speed.check_deadline(np.asarray(setting.visit_steps(sizes)), selector.passes)
    return Simulation(
        setting=setting,
        federation=federation,
        test=test,
        selector=selector,
        availability=availability or always(),
        delivery=delivery or always(),
        rounds=rounds,
        rounds_per_dispatch=min(together, rounds),
        evaluate_every=evaluate_every,
        fixed_width=chunk != "auto",
        client_memory=client_memory,
        exact_traffic=traffic == "exact",
        batch_size=asked_batch_size,
        groups=groups,
        speed=speed,
        broken_clients=policy,
    )


def simulate(
    recipe: Recipe,
    model: Model,
    federation: Federation,
    test: tuple[Any, Any],
    *,
    rounds: int,
    seed: int,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    early_stopping: EarlyStopping | None = None,
    **options: Any,
) -> Result:
    """Trains a federation and evaluates the global model.

    Args:
        recipe: the method, from `fedjax_bal.recipes`.
        model: the model, from `fedjax_bal.models.build`.
        federation: the federation, from `fedjax_bal.data.federate`.
        test: images `[T, H, W, K]` and labels `[T]`.
        rounds: communication rounds.
        seed: from 0 to 2**32 - 1; decides initial weights, availability, selection, delivery and batches. Methods
            that are compared with the same seed share all of them.
        on_round: called with the metrics of each evaluated round.
        early_stopping: ends the run once its metric on the federation's auxiliary set `validation` has stopped getting
            better, with the dispatch in which that shows.
        **options: as in `build`.

    Returns:
        The result.

    Raises:
        ValueError: options that don't fit.
        DivergenceError: where a client's update is broken, unless `broken_clients` says otherwise; or the model isn't
            finite.

    Example:
        >>> import numpy as np
        >>> from fedjax_bal import data, models, recipes
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat([0, 1], 20)
        >>> images = (labels[:, None, None, None] * 200 + rng.integers(0, 50, (40, 2, 2, 1))).astype(np.uint8)
        >>> rows = data.partition.iid(rng, labels, 4)
        >>> federation = data.federate(images, labels, rows, num_classes=2)
        >>> model = models.build("mlp", 2, (2, 2, 1))
        >>> result = simulate(recipes.fedavg(), model, federation, (images, labels), rounds=20, seed=0,
        ...                   batch_size=5, local_optimizer=optimizer("sgd", 0.5))
        >>> result.history[-1]["test_accuracy"]
        1.0
    """
    if whole_number("seed", seed, low=0) >= 2**32:
        raise ValueError(f"seed: received {seed}, must be below 2**32 = {2**32}")
    rule = early_stopping or EarlyStopping()
    if rule.patience is not None and VALIDATION not in federation.auxiliary:
        raise ValueError("early_stopping: received a federation without an auxiliary set 'validation': carve one")
    simulation = build(recipe, model, federation, test, rounds=rounds, **options)
    snapshot, history, confusion = simulation.init(seed), [], np.zeros((0, 0), np.int32)
    while snapshot.round < rounds and not rule.over(history):
        advance = simulation.advance(seed, snapshot)
        snapshot = advance.snapshot
        history += advance.records
        confusion = advance.confusion if advance.confusion is not None else confusion
        if on_round:
            for record in advance.records:
                on_round(record)
    return Result(snapshot.state.variables, history, confusion)


def _single_row_batches(model: Model, drop_last: bool) -> bool:
    """Whether a batch of a single row can come up, and matters."""
    normalises = bool(jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0)).stats))
    return normalises and not drop_last


def _prepare_federation(federation: Federation, recipe: Recipe) -> Federation:
    for part in recipe.parts:
        federation = part.prepare_federation(federation)
    return federation


def _laid_out(setting: Setting, sizes: np.ndarray, selector: Selector, chunk: int | None) -> Setting:
    steps = np.asarray(setting.visit_steps(sizes))
    steps = steps[steps > 0] if steps.any() else np.ones(1, int)
    layout, shape = setting.layout, (selector.chains, selector.chain_length, selector.passes)
    return dataclasses.replace(setting, layout=lay_out(layout.strategy, layout.devices, steps, *shape, chunk))
