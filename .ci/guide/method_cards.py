"""Cards of methods, each a page, built from the package's declarations and from measured results."""

import inspect
import re
from collections.abc import Iterator
from textwrap import indent
from typing import Any

from markup import inline
from measured import BesidePaper, beside_papers, on_long_tail

from fedjax_bal.annotations import parameters, parse_argument_docs
from fedjax_bal.config import ConfigError, load_config, received_value
from fedjax_bal.optim import Optimizer
from fedjax_bal.parts import names_of_needs
from fedjax_bal.recipes import RECIPES, Recipe, citation
from fedjax_bal.selection import Choice

_SECTION = re.compile(r"^(Args|Attributes|Example|Raises|References|Returns):\n((?: .*\n|\n)*)", re.MULTILINE)
_SETTINGS = {
    "server_optimizer": "the server's optimizer",
    "drawing": "how clients draw their rows",
    "selector": "the selector of clients",
    "carried": "whether the local optimizer's state passes from client to client in a chain",
}
_WHICH = {"final": "last round", "best": "best round", "last5": "last five rounds"}


def method_card(name: str) -> str:
    """Builds the card of a recipe: parts with their equations, options, needs, results, cost, papers."""
    recipe, (text, sections) = RECIPES[name](), _docstring(RECIPES[name])
    blocks = [
        f'[All methods](index.md) · <a href="../api/fedjax_bal/recipes.html#{name}">API and source</a>',
        text,
        *_command(name),
        *_parts(recipe),
        *_options(name),
        *_settings(recipe),
        _needs(recipe),
        *_results(name),
        *_references(sections),
        '??? quote "BibTeX"',
        indent(f"```bibtex\n{_bibtex(recipe)}\n```", "    "),
    ]
    return "\n\n".join([f"# {name}", *blocks])


def _command(name: str) -> Iterator[str]:
    """Yields a command that compares a method with FedAvg, if it runs in the quickstart's setting."""
    methods = f"methods=[{', '.join(dict.fromkeys(('fedavg', name)))}]"
    try:
        load_config(None, [methods])
    except ConfigError:
        return
    yield f"```bash\nfedjax-bal run seeds=1 '{methods}'\n```"


def _bibtex(recipe: Recipe) -> str:
    """Returns a recipe's own papers, and FedAvg's after them."""
    fedavg, *own = citation(recipe).split("\n\n")
    return "\n\n".join([*own, fedavg])


def _docstring(thing: Any) -> tuple[str, dict[str, str]]:
    """Returns the text before a docstring's sections, and the sections by name."""
    text = f"{inspect.getdoc(thing) or ''}\n"
    sections = {found[1]: inspect.cleandoc(f"\n{found[2]}") for found in _SECTION.finditer(text)}
    return _SECTION.sub("", text).strip(), sections


def _parts(recipe: Recipe) -> Iterator[str]:
    for part in recipe.parts:
        text, sections = _docstring(type(part))
        roles = ", ".join(role.__name__ for role in type(part).__mro__ if inspect.isabstract(role)) or "before training"
        begins = f" By default it starts in round {part.first_round + 1}." if part.first_round else ""
        papers = f" *{inline(sections['References'])}*" if "References" in sections else ""
        yield f"**`{type(part).__name__}`** ([{roles}](../roles.md)). {text}{begins}{papers}"


def _options(name: str) -> Iterator[str]:
    meanings, fields = parse_argument_docs(RECIPES[name]), parameters(RECIPES[name])
    lines = [f"- `{key}={received_value(default)}`: {meanings.get(key, '')}" for key, (_, default) in fields.items()]
    if lines:
        yield "\n".join(["**Options** and their defaults\n", *lines])
    for which, values in getattr(RECIPES[name], "variants", {}).items():
        changed = ", ".join(f"`{key}={received_value(value)}`" for key, value in values.items())
        yield f"`variant: {which}` sets {changed or 'these defaults'}."


def _settings(recipe: Recipe) -> Iterator[str]:
    chosen = {field: getattr(recipe, field) for field in _SETTINGS}
    said = [f"{_SETTINGS[field]}: `{_short(value)}`" for field, value in chosen.items() if value is not None]
    if said:
        yield f"**Sets** {'; '.join(said)}."


def _short(value: str | Choice | Optimizer) -> str:
    """Formats a setting's name and the options that are set."""
    if isinstance(value, str):
        return value
    fields = value._asdict() if isinstance(value, Choice) else vars(value)
    given = {key: own for key, own in fields.items() if (own or own == 0) and key != "clip_at"}  # for clients only
    options = {**dict(given.pop("options", ())), **dict(given.pop("flags", ()))}
    return ", ".join([given.pop("name"), *(f"{key}={own}" for key, own in {**given, **options}.items())])


def _needs(recipe: Recipe) -> str:
    needs = ", ".join(names_of_needs(recipe.parts)) or "no particular network, server data or local optimizer"
    return f"**Needs** {needs}."


def _results(name: str) -> Iterator[str]:
    own = [_beside(pair) for pair in beside_papers() if pair.recipe == name]
    if own:
        yield "\n".join(["**Published and measured accuracy**\n", *own])
    machine, figures = on_long_tail()
    if name in figures:
        own = figures[name]
        yield (
            f"**Speed and accuracy on [our long tail](../long_tail.md)**: {own.pace:.2f} times FedAvg's client updates "
            f"a second; mean of the last five rounds {own.accuracy:.1f}%, FedAvg's {figures['fedavg'].accuracy:.1f}% "
            f"({machine})."
        )


def _beside(pair: BesidePaper) -> str:
    runs = "one run" if pair.runs == 1 else f"mean of {pair.runs} runs"
    return (
        f"- {pair.source}: {pair.paper:.1f}%, here {pair.here:.1f}% ({_WHICH[pair.which]}; {runs} of `{pair.config}`"
        f"{pair.setting and f', {pair.setting}'})"
    )


def _references(sections: dict[str, str]) -> Iterator[str]:
    if "References" in sections:
        yield f"**References** {inline(sections['References'])}"
