"""Arguments shared by several commands: options, files, changes, and the number of devices."""

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fedjax_bal.cli.console import messages
from fedjax_bal.options import MOST_DEVICES
from fedjax_bal.validate import one_of


def _load(context: typer.Context, targets: list[str] | None) -> list[str] | None:
    """Loads plug-ins during command-line parsing, so that every command sees what they register."""
    if not context.resilient_parsing:  # shell completion must not run user code
        with messages():
            from fedjax_bal.plugins import load_plugins

            load_plugins(targets or ())
    return targets


Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE|MODULE",
        help="Python that registers your own methods, models, data sets or metrics; may be given several times.",
        callback=_load,
        is_eager=True,
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Folder with the data sets' files.")]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="N|all",
        help="Number of devices that share the work; by default as before, else all (on a CPU one per core).",
    ),
]
Plain = Annotated[bool, typer.Option("--plain", help="Print lines instead of a live display.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result and errors.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print the plan, compiled programs, placement and memory.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and exit.")]
Distributed = Annotated[
    bool,
    typer.Option("--distributed", help="Be one of several processes that share the work; start each with its own id."),
]
Coordinator = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Where process 0 waits for the others; or FEDJAX_BAL_COORDINATOR."),
]
ProcessId = Annotated[
    int | None, typer.Option(metavar="I", help="This process's number, from 0; or FEDJAX_BAL_PROCESS_ID.")
]
Processes = Annotated[int | None, typer.Option(metavar="N", help="Number of processes; or FEDJAX_BAL_PROCESSES.")]


class CommandWithChanges(TyperCommand):
    """A command that takes changes of a configuration; an unknown option that is a key is refused with the right form.

    The key's form is KEY=VALUE.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the command line."""
        options = {name for parameter in self.params for name in parameter.opts}
        for word, following in pairwise([*args, ""]):
            option, _, value = word.partition("=")
            if not option.startswith("--") or option in options or not option[2:]:
                continue
            with messages():
                key = option[2:].replace("-", "_")
                from fedjax_bal.config import find_keys

                try:
                    find_keys(key)
                except ValueError:
                    continue
                value = value or ("VALUE" if following.startswith("-") else following or "VALUE")
                change = f"seeds=[{value}]" if key == "seed" else f"{key}={value}"
                raise ValueError(f"{option}: is a key of the configuration, not an option: write {change}")
        return super().parse_args(ctx, args)


def split_arguments(arguments: Sequence[str] | None) -> tuple[str | None, list[str]]:
    """Separates the file (None if there is none) from the changes to it."""
    for argument, following in pairwise(arguments or ()):
        if is_change(argument) and argument.endswith(",") and not is_change(following):
            raise ValueError(
                f"command line: {argument} and {following} are two arguments; leave out the space after the comma, or "
                f"quote the whole: '{argument} {following}'"
            )
    paths = [argument for argument in arguments or () if not is_change(argument)]
    if len(paths) > 1:
        raise ValueError(
            f"command line: received {len(paths)} files ({', '.join(paths)}); give one configuration, "
            "and changes to it as key=value"
        )
    # YAML is UTF-8, whatever encoding the locale gave the arguments.
    changes = [os.fsencode(text).decode(errors="surrogateescape") for text in arguments or () if is_change(text)]
    return (paths[0] if paths else None), changes


def is_change(argument: str) -> bool:
    """Returns whether an argument is a change, key=value, and not a file, whose path may contain "=", too."""
    return "=" in argument and not os.path.isfile(argument)


def parse_names(texts: Sequence[str] | None) -> dict[str, str]:
    """Parses `--names`: methods' names in reports by their names in results, as NAME=LABEL, several as A=B,C=D.

    A comma that isn't followed by NAME= is part of a label.
    """
    names = {}
    for text in (part for whole in texts or () for part in re.split(r",(?=[^,=$]+=)", whole)):
        name, equals, label = map(str.strip, text.partition("="))
        if not (name and equals and label and label.isprintable()):
            raise ValueError(f"--names: received {text!r:.80}, must be NAME=LABEL, such as fedavg=FedAvg")
        names[name] = label
    return names


def parse_devices(wanted: str | None) -> str | int | None:
    """Parses `--devices`: "auto" for all devices, a number, or None if it isn't given."""
    if wanted is None or wanted == "all":
        return wanted and "auto"
    if not wanted.isdecimal() or len(wanted) > 9 or not 1 <= int(wanted) <= MOST_DEVICES:
        raise ValueError(f"--devices: received {wanted!r:.40}, must be an integer from 1 to {MOST_DEVICES}, or all")
    return int(wanted)


def check_engine(name: str, address: str | None) -> None:
    """Rejects an unknown engine, and an address given without a cluster engine."""
    if one_of("--engine", name, ("local", "ray")) == "local" and address is not None:
        raise ValueError(f"--address: received {address!r}, which is for --engine ray: add that, or leave it out")


def refuse_options(wanted: str, **given: Any) -> None:
    """Rejects options that were given although they are for something else, `wanted`."""
    for name, value in given.items():
        if value:
            raise ValueError(f"--{name}: is for {wanted}; leave it out")


def parse_part(text: str | None) -> tuple[int, int] | None:
    """Parses `--part` I/N: part number (from 1) and number of parts; None if it isn't given."""
    if text is None:
        return None
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise ValueError(f"--part: received {text!r:.40}, must be I/N with I from 1 to N, such as 3/10")
    return int(number), int(parts)


def split_cpu_for(configs: Sequence[Any], devices: str | int | None) -> None:
    """Sets the number of CPU devices before jax starts; None takes the number that the configurations ask for."""
    from fedjax_bal.jax_setup import settle_process, split_cpu

    settle_process()
    least = most_devices(configs)
    split_cpu(devices or ("auto" if "auto" in _asked(configs) else least), 1 if devices else least)


def most_devices(configs: Sequence[Any]) -> int:
    """The largest number of devices that a method of the configurations asks for; 1 if none gives a number."""
    return max((int(number) for number in _asked(configs) if number != "auto"), default=1)


def _asked(configs: Sequence[Any]) -> set[str | int]:
    return {method.execution.options.devices for config in configs for method in config.methods}
