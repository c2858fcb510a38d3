"""The cases to measure, from the options of the command."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from fedjax_bal.bench import federations
from fedjax_bal.bench.measure import Case
from fedjax_bal.bench.workloads import WORKLOADS, Workload
from fedjax_bal.config import Config, load_config
from fedjax_bal.engine.host import Simulation
from fedjax_bal.lab import set_up
from fedjax_bal.validate import finite_number, one_of, whole_number

_CHANGEABLE = ("execution.", "model.convolution=")


class BenchOptions(NamedTuple):
    """The options of `fedjax-bal bench`.

    Attributes:
        config: a configuration file; None for workloads.
        overrides: `key=value` changes.
        workloads: names; none for all of them. Not with a configuration.
        seconds: time to measure each case.
        clients_per_round: another size of the cohort; None for the case's own.
        synthetic: random pixels, even with a folder of data.
        data_dir: the folder with the data sets' files.
        devices: number of devices that share the work, or "auto" for all; None for the configuration's.
    """

    config: str | None = None
    overrides: Sequence[str] = ()
    workloads: Sequence[str] = ()
    seconds: float = 5.0
    clients_per_round: int | None = None
    synthetic: bool = False
    data_dir: str | None = None
    devices: str | int | None = None


def cases(wanted: BenchOptions) -> list[Case]:
    """The cases of the options: workloads, or each method of a configuration.

    Workloads make their data only when they are measured.

    Example:
        >>> [case.name for case in cases(BenchOptions(workloads=["W3", "W1"]))]
        ['W3', 'W1']
    """
    _check(wanted)
    if wanted.config is not None:
        return _methods(wanted)
    config = _execution(wanted.overrides)
    chosen = dict.fromkeys(wanted.workloads or WORKLOADS)
    return [_workload(WORKLOADS[name], wanted, config) for name in chosen]


def _execution(overrides: Sequence[str]) -> Config:
    """A configuration that is used only for its execution and its convolution."""
    for change in overrides:
        if not change.startswith(_CHANGEABLE):
            raise ValueError(
                f"command line: received {change!r}, but of a workload only execution.* and model.convolution can be "
                "changed; pass a configuration to change anything else"
            )
    return load_config(None, overrides)


def _workload(workload: Workload, wanted: BenchOptions, config: Config) -> Case:
    execution = dataclasses.replace(config.execution.options, rounds_per_dispatch=1)
    if wanted.devices is not None:
        execution = dataclasses.replace(execution, devices=wanted.devices)

    def make() -> Simulation:
        federation = federations.federate(workload, wanted.data_dir)
        size, convolution = wanted.clients_per_round, config.model.convolution
        return federations.simulation_of(workload, federation, size, execution, convolution)

    return Case(workload.name, make, execution.precision)


def _methods(wanted: BenchOptions) -> list[Case]:
    size = wanted.clients_per_round
    cohort = () if size is None else (f"selection.clients_per_round={size}",)
    config = load_config(wanted.config, (*wanted.overrides, *cohort))
    comparison = set_up(config, wanted.data_dir, wanted.devices)

    def case(index: int) -> Case:
        method, simulation = comparison.methods[index], comparison.simulations[index]
        return Case(method.name, lambda: simulation, method.execution.options.precision)

    return [case(index) for index in range(len(comparison.simulations))]


def _check(wanted: BenchOptions) -> None:
    finite_number("--seconds", wanted.seconds)
    if wanted.clients_per_round is not None:
        whole_number("--clients-per-round", wanted.clients_per_round)
    for name in wanted.workloads:
        one_of("--workload", name, WORKLOADS)
    if wanted.synthetic and wanted.data_dir is not None:
        raise ValueError(f"--synthetic: received it with --data-dir {wanted.data_dir}; leave one of them out")
    if wanted.config is None:
        return
    for option, given in (("--workload", bool(wanted.workloads)), ("--synthetic", wanted.synthetic)):
        if given:
            raise ValueError(
                f"{option}: received it with the configuration {wanted.config}, which says what to train on; leave "
                "one of them out"
            )
