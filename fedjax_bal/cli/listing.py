"""The documentation commands: `fedjax-bal list`, `guide`, `config explain` and `config schema`."""

import inspect
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

import typer
from rich.markdown import Markdown
from rich.table import Table

from fedjax_bal.cli.arguments import Plugins
from fedjax_bal.cli.console import names_table

PAGES = Path(__file__).parents[1] / "guide"
KINDS = (
    *("recipes", "models", "selectors", "partitions", "datasets", "metrics", "analyses", "optimizers", "schedules"),
    *("availability", "delivery", "speeds", "configs"),
)


def explain(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="A key, such as training.rounds, rounds or lr.")],
    plugin: Plugins = None,
) -> Iterator[Table]:
    """Explain a key of a configuration: its meaning, allowed values and default."""
    from fedjax_bal.config import find_keys, short_form

    for key in keys:
        entries = []
        for entry in find_keys(key):
            short = short_form(entry)
            meaning = [entry.meaning[:1].upper() + entry.meaning[1:]] if entry.meaning else []
            choices = [f"with {', '.join(entry.choices)}"] if entry.choices else []
            default = f"; default {entry.default}" if entry.default else ""
            shorter = [f"short: {short}"] if short != entry.path else []
            entries.append((entry.path, [*meaning, *choices, entry.allowed + default, *shorter]))
        yield names_table(entries)


def schema(plugin: Plugins = None) -> Iterator[str]:
    """Print the JSON Schema of configurations, for completion and validation in editors."""
    from fedjax_bal.config import json_schema

    yield json.dumps(json_schema(), indent=1)


def guide(
    page: Annotated[str | None, typer.Argument(metavar="[PAGE]", help="Name of a page; without it, list them.")] = None,
) -> Iterator[Table | Markdown]:
    """Show a page of the guide in the terminal."""
    pages = {file.stem: file.read_text(encoding="utf-8") for file in sorted(PAGES.glob("*.md"))}
    if page is None:
        yield names_table((name, [text.partition("\n")[0].removeprefix("# ")]) for name, text in pages.items())
        return
    from fedjax_bal.config import nearest_choices

    if page not in pages:
        raise ValueError(f"guide: received {page!r}; {nearest_choices(page, pages)}")
    yield Markdown(pages[page])


def list_names(
    what: Annotated[str | None, typer.Argument(metavar="[KIND]", help="A kind; without it, list the kinds.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A name of this kind, to describe it.")] = None,
    plugin: Plugins = None,
) -> Iterator[str | Table]:
    """List the names that a configuration can use."""
    what = "recipes" if what == "methods" else what
    if what is None:
        yield names_table((kind, [f"fedjax-bal list {kind}"]) for kind in KINDS)
        return
    if name is not None:
        yield described_whole(what, name)
        return
    if what != "recipes":
        yield names_table((known, text.splitlines()) for known, text in listing(what).items())
        return
    for family, texts in recipes_by_family().items():
        yield f"\n{family}:"
        yield names_table((known, text.splitlines()) for known, text in texts.items())


def recipes_by_family() -> dict[str, dict[str, str]]:
    """Returns the recipes' names and descriptions by the heading of their family."""
    from fedjax_bal.recipes import family_of

    families: dict[str, dict[str, str]] = {}
    for name, text in listing("recipes").items():
        families.setdefault(family_of(name), {})[name] = text
    return families


def listing(what: str) -> dict[str, str]:
    """Returns the names of one kind of `KINDS`, each with a description of one or more lines.

    Example:
        >>> print(listing("partitions")["shards"])
        Cuts the label-sorted data into equal shards and deals each client the same number of them.
        takes shards_per_client=2
        also called shard
        >>> print(listing("recipes")["fedavg_ft"])
        FedAvg whose server fine-tunes the classifier on its own balanced rows after each round.
        takes epochs=5, learning_rate=0.01, momentum=0.5, batch_size=50
        needs auxiliary rows (auxiliary.per_class)
        from Xu et al., arXiv 2023
    """
    # Imports are local, so that each kind imports only what it needs.
    from fedjax_bal.annotations import parameters
    from fedjax_bal.config import nearest_choices

    match what:
        case "recipes":
            from fedjax_bal.parts import names_of_needs
            from fedjax_bal.recipes import RECIPES, short_citation

            texts = {}
            for name, function in RECIPES.items():
                recipe = _at_defaults(function)
                needs = "" if recipe is None else ", ".join(names_of_needs(recipe.parts))
                more = [("needs", needs), ("from", short_citation(name))]
                texts[name] = _text(_first_line(function), ("takes", _takes(function)), *_variants(function), *more)
            return texts
        case "models":
            from fedjax_bal.models import MODELS, options

            defaults = {name: {key: default for key, (_, default) in options(name).items()} for name in MODELS}
            return {
                name: _text(entry.description, ("takes", format_parameters(defaults[name])))
                for name, entry in MODELS.items()
            }
        case "selectors":
            from fedjax_bal.selection import FROM_FEDERATION, SELECTORS

            return _functions(SELECTORS, skip=("clients_per_round", *FROM_FEDERATION))
        case "partitions":
            from fedjax_bal.data import partition

            texts = _functions(partition.SCHEMES, skip=("rng", "labels", "num_clients", *partition.FROM_DATASET))
            also = {name: ", ".join(partition.aliases_of(name)) for name in texts}
            return {name: _text(text, ("also called", also[name])) for name, text in texts.items()}
        case "datasets":
            from fedjax_bal.data import DATASETS

            return {name: reader.description for name, reader in DATASETS.items()}
        case "metrics":
            from fedjax_bal.metrics import METRICS

            texts = {}
            for name, metric in METRICS.items():
                words = ["each evaluated round"] * (metric.of_round is not None)
                words += ["a whole run"] * (metric.of_run is not None)
                unit = f", in {metric.unit.symbol}" if metric.unit.symbol and metric.unit.factor == 1 else ""
                texts[name] = f"{metric.meaning}\nof {' and of '.join(words)}{unit}"
            return texts
        case "analyses":
            from fedjax_bal.analyses import ANALYSES

            return _functions(ANALYSES)
        case "optimizers":
            import optax

            from fedjax_bal.optim import optimizer_names, option_names

            texts = {}
            for name in optimizer_names():
                known = parameters(getattr(optax, name))
                texts[name] = _optax(name, {key: known[key] for key in option_names(name) if key in known})
            return texts
        case "schedules":
            from fedjax_bal.optim import schedule_factory, schedule_names

            functions = {name: schedule_factory(name) for name in schedule_names()}
            documented = _functions({name: function for name, function in functions.items() if function.__doc__})
            return {name: documented.get(name) or _optax(name, parameters(made)) for name, made in functions.items()}
        case "availability" | "delivery" | "speeds":
            from fedjax_bal.selection import AVAILABILITY, DELIVERY, SPEEDS

            return _functions({"availability": AVAILABILITY, "delivery": DELIVERY, "speeds": SPEEDS}[what])
        case "configs":
            first = {name: header.partition("\n\n")[0].replace("\n", " ") for name, header in _headers().items()}
            return {name: text.partition(". ")[0].removesuffix(".") + "." for name, text in first.items()}
    commands = [f"`fedjax-bal list {kind} {what}`" for kind in KINDS if what in listing(kind)]
    if commands:
        raise ValueError(f"list: received {what!r}, which isn't a kind; for this name use {' or '.join(commands)}")
    raise ValueError(f"list: received {what!r}; {nearest_choices(what, KINDS)}")


def described_whole(kind: str, name: str) -> str:
    """Describes a name in full: docstring or header, and a recipe's parts and papers; otherwise as `listing` does.

    Raises:
        ValueError: the kind or name doesn't exist.

    Example:
        >>> "Proximal (Loss)" in described_whole("recipes", "fedprox")
        True
        >>> "Command   fedjax-bal run" in described_whole("configs", "quickstart")
        True
    """
    from fedjax_bal.config import nearest_choices

    names = listing(kind)
    if name not in names:
        raise ValueError(f"list {kind}: received {name!r}; {nearest_choices(name, names, kind=kind)}")
    match kind:
        case "configs":
            return _headers()[name]
        case "recipes":
            from fedjax_bal.recipes import RECIPES

            return "\n\n".join(_whole_recipe(RECIPES[name]))
        case "selectors":
            from fedjax_bal.selection import SELECTORS

            return inspect.getdoc(SELECTORS[name]) or ""
        case "partitions":
            from fedjax_bal.data import partition

            return inspect.getdoc(partition.SCHEMES[name]) or ""
    return names[name]


def _whole_recipe(function: Callable[..., Any]) -> Iterator[str]:
    from fedjax_bal.parts import Part, names_of_needs
    from fedjax_bal.recipes import citation

    yield inspect.getdoc(function) or ""
    yield _text(f"Defaults: {_takes(function) or 'it has no options'}", *_variants(function))
    recipe = _at_defaults(function)
    if recipe is None:
        return
    yield f"Needs at these defaults: {', '.join(names_of_needs(recipe.parts)) or 'nothing'}"
    parts = []
    for part in recipe.parts:
        known = [kind for kind in type(part).__mro__ if kind.__module__ == "fedjax_bal.methods.roles"]
        roles = [kind.__name__ for kind in known if kind is not Part]
        # The part's docstring has the equations and departures from the paper; the recipe's explains the fields.
        sections = re.split(r"\n\n(?=[A-Z]\w+:\n)", inspect.getdoc(type(part)) or "")
        says = "\n\n".join(text for text in sections if not text.startswith(("Attributes:", "Example:")))
        parts.append(f"  {type(part).__name__} ({', '.join(roles)})\n{indent(says, '    ')}")
    yield "\n\n".join(["Parts at these defaults, with their roles:", *(parts or ["  none"])])
    try:
        yield citation(recipe)
    except ValueError:
        yield f"No citation of {recipe.name} is known; `register(..., citation=BIBTEX)` adds one to your own recipe."


def _at_defaults(recipe: Callable[..., Any]) -> Any:
    """Builds the recipe with its defaults; None if a parameter has no default."""
    parameters = inspect.signature(recipe).parameters.values()
    return None if any(parameter.default is parameter.empty for parameter in parameters) else recipe()


def _variants(recipe: Callable[..., Any]) -> list[tuple[str, str]]:
    variants = getattr(recipe, "variants", {}).items()
    return [(f"variant={name}:", format_parameters(values) or "the defaults") for name, values in variants]


def _headers() -> dict[str, str]:
    """Returns the header comments of built-in configurations."""
    from fedjax_bal.config import builtin_configs

    heads = {name: file.read_text(encoding="utf-8").partition("\n\n")[0] for name, file in builtin_configs().items()}
    return {name: head[2:].replace("\n# ", "\n").replace("\n#", "\n") for name, head in heads.items()}


def _functions(functions: Mapping[str, Callable[..., Any]], skip: Collection[str] = ()) -> dict[str, str]:
    return {name: _text(_first_line(made), ("takes", _takes(made, skip))) for name, made in functions.items()}


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]


def _takes(function: Callable[..., Any], skip: Collection[str] = ()) -> str:
    """Describes the parameters of a function with their defaults."""
    known = inspect.signature(function).parameters.values()
    return format_parameters({p.name: ... if p.default is p.empty else p.default for p in known if p.name not in skip})


def _optax(name: str, fields: Mapping[str, tuple[Any, Any]]) -> str:
    """Describes a function of optax briefly, because its docstring is long."""
    return _text(f"optax.{name}", ("takes", format_parameters({key: default for key, (_, default) in fields.items()})))


def format_parameters(values: Mapping[str, Any]) -> str:
    """Formats parameters as in a configuration; ... marks a required parameter."""
    texts = []
    for name, value in values.items():
        try:
            text = value if isinstance(value, str | type(...)) else json.dumps(value)
        except TypeError:  # a plug-in's default may be a function or a NumPy number
            text = getattr(value, "__name__", value)
        texts.append(name if text is ... else f"{name}={text}")
    return ", ".join(texts)


def _text(first: str, *labelled: tuple[str, str]) -> str:
    return "\n".join(filter(None, [first, *(f"{label} {text}" for label, text in labelled if text)]))
