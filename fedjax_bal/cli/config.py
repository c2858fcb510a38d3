"""The commands `fedjax-bal config explain` and `fedjax-bal config schema`."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedjax_bal.cli.arguments import Plugins
from fedjax_bal.cli.console import names_table

if TYPE_CHECKING:
    from fedjax_bal.config import KeyReference


def explain(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="A key, such as training.rounds, rounds or lr.")],
    plugin: Plugins = None,
) -> Iterator[Table]:
    """Say what a key of a configuration means, what it can be, and its default."""
    from fedjax_bal.config import explained

    for key in keys:
        yield names_table((one.path, _lines(one)) for one in explained(key))


def _lines(one: "KeyReference") -> list[str]:
    meaning = [one.meaning[:1].upper() + one.meaning[1:]] if one.meaning else []
    of = [f"with {', '.join(one.choices)}"] if one.choices else []
    default = f"; default {one.default}" if one.default else ""
    return [*meaning, *of, one.allowed + default]


def schema(plugin: Plugins = None) -> Iterator[str]:
    """Print the JSON Schema of configurations, with which editors complete and check them."""
    from fedjax_bal.config import json_schema

    yield json.dumps(json_schema(), indent=1)
