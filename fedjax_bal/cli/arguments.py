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
        help="Python code that registers your own methods, models, data sets or metrics; may be repeated.",
        callback=_load,
        is_eager=True,
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Folder with the data sets' files.")]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="N|all",
        help="Number of devices to use. Default: all (one per CPU core); a run resumes with the number it began with.",
    ),
]
Plain = Annotated[bool, typer.Option("--plain", metavar="", help="Print lines instead of a live display.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", metavar="", help="Print only the result and errors.")]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG] [KEY=VALUE ...]",
        help="A YAML file or a built-in configuration (fedjax-bal list configs), by default the quickstart; then "
        "changes to it, such as rounds=30, methods=\\[fedavg,rebafl] or seeds=3.",
    ),
]


class CommandWithChanges(TyperCommand):
    """A command that takes configuration changes as KEY=VALUE, with a hint if a key is given as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the command line."""
        options = {name for parameter in self.params for name in parameter.opts}
        for word in args:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in options and _is_key(key := option[2:].replace("-", "_")):
                form = "seeds=[VALUE]" if key == "seed" else f"{key}=VALUE"
                with messages():
                    raise ValueError(f"{option}: is a key of the configuration, not an option: write {form}")
        return super().parse_args(ctx, args)


def _is_key(name: str) -> bool:
    from fedjax_bal.config import find_keys

    try:
        return bool(name) and bool(find_keys(name))
    except ValueError:
        return False


def split_arguments(arguments: Sequence[str] | None) -> tuple[str | None, list[str]]:
    """Separates the file (None if there is none) from the changes to it, KEY=VALUE.

    The path of an existing file may contain "=", too.
    """
    is_change = lambda argument: "=" in argument and not os.path.isfile(argument)
    for argument, following in pairwise(arguments or ()):
        if is_change(argument) and argument.endswith(",") and not is_change(following):
            raise ValueError(f"command line: {argument} {following}: remove the space after the comma")
    paths = [argument for argument in arguments or () if not is_change(argument)]
    if len(paths) > 1:
        raise ValueError(
            f"command line: received {len(paths)} files ({', '.join(paths)}); give one configuration, "
            "and changes to it as key=value"
        )
    # YAML is UTF-8, whatever encoding the locale gave the arguments.
    changes = [os.fsencode(text).decode(errors="surrogateescape") for text in arguments or () if is_change(text)]
    return (paths[0] if paths else None), changes


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


def parse_part(text: str | None) -> tuple[int, int] | None:
    """Parses `--part` I/N: part number (from 1) and number of parts; None if it isn't given."""
    if text is None:
        return None
    number, _, parts = text.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise ValueError(f"--part: received {text!r:.40}, must be I/N with I from 1 to N, such as 3/10")
    return int(number), int(parts)


def refuse_options(reason: str, **given: Any) -> None:
    """Rejects options that don't apply to this command."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"--{name.replace('_', '-')}: {reason}; leave it out")


def refuse_repeated(folders: Sequence[Path]) -> None:
    """Rejects a folder that is given twice, whatever the paths to it."""
    known = set()
    for folder in folders:
        place = os.path.realpath(folder)
        if place in known:
            raise ValueError(f"{folder}: received the same folder twice; give it once")
        known.add(place)


def split_cpu_for(configs: Sequence[Any], devices: str | int | None) -> None:
    """Sets the number of CPU devices before jax starts; None takes the number that the configurations ask for."""
    from fedjax_bal.jax_setup import settle_process, split_cpu

    settle_process()
    if devices:
        split_cpu(devices)
        return
    numbers, automatic = _devices_asked_for(configs)
    split_cpu("auto" if automatic else numbers, numbers)


def most_devices(configs: Sequence[Any]) -> int:
    """The largest number of devices that a method of the configurations asks for; 1 if none gives a number."""
    return _devices_asked_for(configs)[0]


def _devices_asked_for(configs: Sequence[Any]) -> tuple[int, bool]:
    """Returns the largest number that a method asks for, and whether one asks for "auto"."""
    asked = {method.execution.options.devices for config in configs for method in config.methods}
    return max((int(number) for number in asked if number != "auto"), default=1), "auto" in asked
