"""From a recipe and a federation to a trained model: the library's front door."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_bal.caches import keep_compiled_programs
from fedjax_bal.engine.device import VALIDATION, Layout, Setting, TestSet, at_precision, in_batches
from fedjax_bal.engine.host import compatibility
from fedjax_bal.engine.host.simulation import Simulation
from fedjax_bal.engine.host.strategy import device_count, with_layout
from fedjax_bal.jax_setup import is_traced, package_settings, start_jax
from fedjax_bal.metrics import METRICS, EarlyStopping, client_accuracies, shot_groups
from fedjax_bal.models import check_is_model, normalisation_of
from fedjax_bal.optim import AnyOptimizer
from fedjax_bal.options import Evaluation, Execution, LocalTraining, Participation, derived
from fedjax_bal.parts import BATCH_STATISTICS, CheckContext, NeedsContext, changes_for_evaluation, check_needs
from fedjax_bal.recipes import Recipe, combine
from fedjax_bal.status import StatusLine, duration
from fedjax_bal.types import Dataset, Federation, Model, PyTree, Variables
from fedjax_bal.validate import whole_number


class Result(NamedTuple):
    """The result of a run.

    Attributes:
        variables: the global model after the last round.
        history: a dict of metrics for each evaluated round.
        confusion: `Int[C, C]` of the last evaluation, true class by predicted class.
        client_memory: each Memory part's memory of the clients after the last round, by the part's slot; leaves
            `[N, ...]`.
        server_state: each Server part's state after the last round, by the part's slot.
        model: the network, with the method's additions.
        evaluated: the model that was tested, which `fedjax_bal.export_model` writes to a file. It differs from
            `variables` with methods that change the model for evaluation alone: `fedacg`, `fedncm`, `ccvr`, `creff`,
            `rucr`, `fedloge`, and `fedbabu` if it fine-tunes. Training continues from `variables`.
        client_accuracies: accuracy of the model that each client uses on the client's own test rows, at the last
            evaluation, `Float64[N]`; nan for a client without any, None if no client has any.
            `federation.client_names` has the clients' names.
    """

    variables: Variables
    history: list[dict[str, Any]]
    confusion: np.ndarray
    client_memory: Mapping[str, PyTree]
    server_state: Mapping[str, PyTree]
    model: Model
    evaluated: Variables
    client_accuracies: np.ndarray | None = None

    def __repr__(self) -> str:
        """Summarises the result, whose arrays would fill pages.

        Example:
            >>> from fedjax_bal import models
            >>> records = [{"round": 9, "test_accuracy": 0.71234567}]
            >>> head = Variables({"head": np.zeros((3, 2))}, {})
            >>> Result(head, records, np.eye(2), {}, {"Moon": 0}, models.build("mlp", 2, (2, 2, 1)), head)
            Result(round=9, test_accuracy=0.7123, parameters=6, client_memory=[], server_state=['Moon'])
        """
        last = self.history[-1] if self.history else {}
        shown = {key: f"{last[key]:.4g}" for key in ("round", "test_accuracy") if key in last}
        shown["parameters"] = f"{sum(map(np.size, jax.tree.leaves(self.variables.params))):,}"
        shown |= {"client_memory": str([*self.client_memory]), "server_state": str([*self.server_state])}
        return f"Result({', '.join(f'{key}={value}' for key, value in shown.items())})"


def build_simulation(
    recipe: Recipe,
    model: Model,
    federation: Federation,
    test: tuple[Any, Any] | Dataset | TestSet,
    *,
    rounds: int,
    local: LocalTraining = LocalTraining(),
    participation: Participation = Participation(),
    evaluation: Evaluation = Evaluation(),
    execution: Execution = Execution(),
    server_optimizer: AnyOptimizer | None = None,
    enlarge: Callable[[Federation, Recipe], Federation] | None = None,
    saves: bool = False,
    needs_checked: bool = False,
) -> Simulation:
    """Builds a simulation from the arguments of `simulate`, and checks that they fit together; compiles nothing yet.

    Simulations may share a test set, divided beforehand by `in_batches`, and a federation, which `enlarge` returns in
    place of the parts' `prepare_federation`. `saves` says whether the runs' checkpoints will be written, and
    `needs_checked` that the recipe's needs have been checked already, by a configuration before it loaded any data.
    """
    start_jax()  # on all cores, before the next line makes an array
    if is_traced():
        raise ValueError(
            "simulate and make_round: called inside jax.jit or another of jax's transformations, must be called "
            "outside, as they read data and compile programs: call make_round outside, and inside the `step` of its "
            "result"
        )
    # The arguments' types, before anything reads them.
    rounds = whole_number("rounds", rounds)
    check_is_model(model)
    compatibility.check_is_federation(federation)
    compatibility.check_options(
        local=(local, LocalTraining),
        participation=(participation, Participation),
        evaluation=(evaluation, Evaluation),
        execution=(execution, Execution),
    )
    if not isinstance(test, TestSet):
        test = in_batches(*compatibility.checked_test(test, federation))
    recipe = combine(recipe)  # a recipe that was put together by hand is refused for the same reasons
    compatibility.check_parameters(model)

    # The parts change the model first, because their needs and the optimizers are checked on the network as trained.
    held = np.zeros(len(federation.labels), bool)
    held[np.asarray(federation.rows)] = True  # a row that several clients have is one image
    sizes = np.bincount(np.asarray(federation.labels)[held], minlength=federation.num_classes)
    groups = shot_groups(sizes, evaluation.shots)
    for part in recipe.parts:
        model = part.bind(model)
    trained = compatibility.fitting_optimizer("local.optimizer", local.optimizer, model)
    local = derived(local, optimizer=trained)
    # Parts also implement the options of batch statistics; they come after the recipe's own.
    recipe = dataclasses.replace(recipe, parts=(*recipe.parts, *BATCH_STATISTICS[local.batch_statistics]))
    normalisation = normalisation_of(model)
    needs_context = NeedsContext(
        parts=recipe.parts,
        local=trained,
        carried=bool(recipe.carried),
        rounds=rounds,
        clients=federation.num_clients,
        auxiliary=[name for name, rows in federation.auxiliary.items() if len(rows)],
        model=model.name,
        normalisation=normalisation,
        clips=execution.clips,
    )
    if not needs_checked:
        check_needs(needs_context)
    check_context = CheckContext(recipe.parts, model, federation, trained, needs_context.carried, rounds)
    for part in recipe.parts:
        part.check(check_context)

    # The parts may add rows to the federation, so its sizes and shapes are checked only afterwards.
    if enlarge is not None:
        federation = enlarge(federation, recipe)
    else:
        for part in recipe.parts:
            federation = part.prepare_federation(federation)
    compatibility.check_shapes(model, federation, test)
    if VALIDATION in federation.auxiliary and not len(federation.auxiliary[VALIDATION]):
        raise ValueError(
            f"federation: received an auxiliary set {VALIDATION!r} without rows: give it at least one, or leave it out"
        )
    compatibility.check_clients(participation, federation.num_clients)

    # Only choices from here on. The model is cast after all checks, which are of its float32 parameters.
    model = at_precision(model, execution.precision)
    selector = compatibility.choose_selector(recipe, participation, federation)
    compatibility.check_asynchrony(recipe, selector, participation)
    compatibility.check_chains(recipe, selector)
    cautions = [part.caution(check_context, selector.most) for part in recipe.parts]
    sizes = federation.sizes
    test_images = int(np.sum(test.real))
    if evaluation.local_test_images > test_images:
        raise ValueError(
            f"local_test_images: received {evaluation.local_test_images}, must be at most {test_images}, the number of "
            "test images"
        )
    declared = [metric.measured for metric in METRICS.values() if metric.measured is not None]
    setting = Setting(
        parts=recipe.parts,
        local=compatibility.choose_local_training(recipe, local, int(sizes.max()), normalisation),
        server=compatibility.choose_server_optimizer(recipe, server_optimizer, model),
        model=model,
        drawn_by_size=selector.drawn_by_size,
        passes=selector.passes,
        carried=bool(recipe.carried),
        max_staleness=0 if selector.asynchrony is None else selector.asynchrony.max_staleness,
        max_size=int(sizes.max()),
        evaluation=evaluation,
        measured=tuple(each for each in declared if each.enabled(evaluation, federation)),
        test_images=test_images,
        layout=Layout(devices=1 if execution.debugs else device_count(execution.devices)),
        execution=execution,
    )
    idle = np.count_nonzero((sizes > 0) & (np.asarray(setting.steps_per_epoch(sizes)) == 0))
    if idle:
        cautions.append(
            f"{idle} of {len(sizes)} clients never train, because they have fewer rows than a batch of "
            f"{setting.local.batch_size} (drop_last)"
        )
    if participation.speed is not None:
        participation.speed.check_deadline(np.asarray(setting.local_steps(sizes)), selector.passes)
    return Simulation(
        setting=with_layout(setting, execution.strategy, sizes, selector, limited=participation.speed is not None),
        federation=federation,
        test=test,
        rounds=rounds,
        selector=selector,
        participation=participation,
        execution=execution,
        batch_size=local.batch_size,
        groups=groups,
        saves=saves,
        cautions=tuple(f"{recipe.name}: {text}" for text in cautions if text),
    )


@package_settings()
def simulate(
    recipe: Recipe,
    model: Model,
    federation: Federation,
    test: tuple[Any, Any] | Dataset,
    *,
    rounds: int,
    seed: int,
    local: LocalTraining = LocalTraining(),
    participation: Participation = Participation(),
    evaluation: Evaluation = Evaluation(),
    execution: Execution = Execution(),
    server_optimizer: AnyOptimizer | None = None,
    variables: Variables | None = None,
    early_stopping: EarlyStopping | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    progress: bool | None = None,
) -> Result:
    """Trains a federation and evaluates the global model.

    Compiled programs are kept in the user's cache folder, `~/.cache/fedjax_bal` or below `XDG_CACHE_HOME`, unless jax
    has another one: `jax.config.update("jax_compilation_cache_dir", FOLDER)`. To keep none, set
    `jax_enable_compilation_cache` to False. On a CPU all cores are used, unless jax has already started with fewer
    devices.

    Args:
        recipe: the method, from `fedjax_bal.recipes`.
        model: the model, from `fedjax_bal.models.build`, or `from_linen` or `from_nnx` for your own network.
        federation: the federation, from `fedjax_bal.data.federate`.
        test: inputs `[T, ...]`, shaped and scaled like the training inputs (images `[T, H, W, K]`), and labels `[T]`;
            or a data set, whose test part is used. If the federation has names, the inputs may be a data frame, whose
            columns are taken by name, and the labels may be class names; a data set's columns and classes are compared
            by name, too.
        rounds: communication rounds.
        seed: from 0 to 2**32 - 1; determines initial weights, availability, selection, delivery and batches, which
            methods with the same seed therefore share.
        local: how clients train: epochs or steps, batches, optimizer.
        participation: which clients train, and which of their updates arrive; by default ten random clients, or all if
            there are fewer, and all updates.
        evaluation: when the global model is tested, and which further metrics are reported; by default after every
            round.
        execution: how to lay out the work on the machine, and what to do with broken clients.
        server_optimizer: from `fedjax_bal.optimizer`, or any optax transformation; by default the recipe's, or else
            plain averaging.
        variables: the model to start from, as `Result.variables`, `load_run(...).variables()`, `load_weights` or
            `model.init` return it; by default drawn with the seed. They aren't modified. For weights without the
            method's additions to the model, or without its classifier, see `fedjax_bal.models.with_weights`.
        early_stopping: ends the run after the dispatch in which its metric on the federation's auxiliary set
            `validation` stops improving.
        on_round: called with the metrics of each evaluated round.
        progress: show a line on standard error while programs are compiled and rounds are trained; by default in a
            terminal and in a notebook.

    Returns:
        The final model and the metrics.

    Raises:
        ValueError: values don't fit together; the message names them and the remedy.
        DivergenceError: a client's update is broken, unless `execution.broken_clients` allows it, or the model isn't
            finite.

    Example:
        >>> import numpy as np
        >>> import optax
        >>> from fedjax_bal import data, models, recipes
        >>> rng = np.random.default_rng(0)
        >>> labels = np.repeat([0, 1], 20)
        >>> images = (labels[:, None, None, None] * 200 + rng.integers(0, 50, (40, 2, 2, 1))).astype(np.uint8)
        >>> rows = data.partition.iid(rng, labels, 4)
        >>> federation = data.federate(images, labels, rows, num_classes=2)
        >>> model = models.build("mlp", 2, (2, 2, 1))
        >>> result = simulate(recipes.fedavg(), model, federation, (images, labels), rounds=20, seed=0,
        ...                   local=LocalTraining(batch_size=5, optimizer=optax.sgd(0.5)))
        >>> result.history[-1]["test_accuracy"]
        1.0

        Another round, from the model above:

        >>> more = simulate(recipes.scaffold(), model, federation, (images, labels), rounds=1, seed=0,
        ...                 local=LocalTraining(batch_size=5), variables=result.variables)
        >>> more.history[0]["test_accuracy"], list(more.client_memory), list(more.server_state)
        (1.0, ['ControlVariates'], ['ControlVariates'])
    """
    seed = whole_number("seed", seed, low=0)
    if seed >= 2**32:
        raise ValueError(f"seed: received {seed}, must be below 2**32 = {2**32}")
    rule = EarlyStopping() if early_stopping is None else early_stopping
    compatibility.check_options(early_stopping=(rule, EarlyStopping))
    if on_round is not None and not callable(on_round):
        raise ValueError(f"on_round: received {on_round!r}, must be a function of a dict of metrics, or None")
    if progress not in (None, False, True):
        raise ValueError(f"progress: received {progress!r}, must be True, False or None")
    with StatusLine(getattr(recipe, "name", ""), progress) as status:
        status.show("compiling")
        simulation = build_simulation(
            recipe,
            model,
            federation,
            test,
            rounds=rounds,
            local=local,
            participation=participation,
            evaluation=evaluation,
            execution=execution,
            server_optimizer=server_optimizer,
        )
        if rule.patience is not None and VALIDATION not in simulation.federation.auxiliary:
            raise ValueError("early_stopping: received a federation without an auxiliary set 'validation': carve one")
        simulation.warn()
        keep_compiled_programs()
        with status.counting("compiling"):
            snapshot = simulation.init(seed, variables)
            simulation.compile()
        history = []
        confusion = np.zeros((0, 0), np.int32)
        client_hits = None
        began = time.monotonic()
        while snapshot.round < simulation.rounds and not rule.should_stop(history):
            done = simulation.advance(seed, snapshot)
            snapshot = done.snapshot
            history += done.records
            confusion = done.confusion if done.confusion is not None else confusion
            client_hits = done.client_hits if done.client_hits is not None else client_hits
            left = (time.monotonic() - began) / snapshot.round * (simulation.rounds - snapshot.round)
            accuracy = f", test accuracy {history[-1]['test_accuracy']:.1%}" if history else ""
            status.show(f"round {snapshot.round} of {simulation.rounds}{accuracy}, {duration(left)} left")
            if on_round and done.records:
                status.clear()
                for record in done.records:
                    on_round(record)
    state = snapshot.state
    setting = simulation.setting
    another = changes_for_evaluation(setting.parts)
    evaluated = simulation.tested_model(seed, snapshot) if another else state.variables
    tests = simulation.federation.tests
    accuracies = None
    if client_hits is not None and tests is not None:
        accuracies = client_accuracies(client_hits.sum(1), tests.sizes)
    return Result(state.variables, history, confusion, state.memory, state.server, setting.model, evaluated, accuracies)
