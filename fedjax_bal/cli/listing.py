"""The commands that explain: `fedjax-bal list`, `guide`, `config explain` and `config schema`."""

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


def explain(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="A key, such as training.rounds, rounds or lr.")],
    plugin: Plugins = None,
) -> Iterator[Table]:
    """Say what a key of a configuration means, what it can be, and its default."""
    from fedjax_bal.config import explained

    for key in keys:
        entries = []
        for found in explained(key):
            meaning = [found.meaning[:1].upper() + found.meaning[1:]] if found.meaning else []
            choices = [f"with {', '.join(found.choices)}"] if found.choices else []
            default = f"; default {found.default}" if found.default else ""
            entries.append((found.path, [*meaning, *choices, found.allowed + default]))
        yield names_table(entries)


def schema(plugin: Plugins = None) -> Iterator[str]:
    """Print the JSON Schema of configurations, with which editors complete and check them."""
    from fedjax_bal.config import json_schema

    yield json.dumps(json_schema(), indent=1)


PAGES = Path(__file__).parents[1] / "guide"


def guide(
    page: Annotated[str | None, typer.Argument(metavar="[PAGE]", help="One of the pages; none to see them.")] = None,
) -> Iterator[Table | Markdown]:
    """Show a page of the guide in the terminal."""
    pages = {file.stem: file for file in sorted(PAGES.glob("*.md"))}
    if page is None:
        titles = {name: file.read_text(encoding="utf-8").partition("\n")[0] for name, file in pages.items()}
        yield names_table((name, [title.removeprefix("# ")]) for name, title in titles.items())
        return
    from fedjax_bal.config import nearest_choices

    if page not in pages:
        raise ValueError(f"guide: received {page!r}; {nearest_choices(page, pages)}")
    yield Markdown(pages[page].read_text(encoding="utf-8"))


KINDS = (
    *("recipes", "models", "selectors", "partitions", "datasets", "metrics", "optimizers", "schedules"),
    *("availability", "delivery", "speeds", "configs"),
)


def list_names(
    what: Annotated[str | None, typer.Argument(metavar="[KIND]", help="One of the kinds; none to see them.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of them, to see all about it.")] = None,
    plugin: Plugins = None,
) -> Iterator[str | Table]:
    """List what a configuration can name."""
    if what and name:
        yield described_whole(what, name)
        return
    for heading, texts in grouped(what):
        if heading:
            yield f"\n{heading}:"
        yield names_table((known, text.splitlines()) for known, text in texts.items())


def listing(what: str) -> dict[str, str]:
    """The names of one kind, one of `KINDS`, each with a text of one or more lines.

    Example:
        >>> print(listing("partitions")["shards"])
        Cuts the label-sorted data into equal shards and deals each client the same number of them.
        takes shards_per_client=2
        also called shard
        >>> print(listing("recipes")["fedavg_ft"])
        FedAvg whose server fine-tunes the classifier on balanced rows of its own after each round.
        takes epochs=5, learning_rate=0.01, momentum=0.5, batch_size=50
        needs auxiliary rows (auxiliary.per_class)
        from Xu et al., arXiv 2023
    """
    # Each kind imports only what it needs.
    from fedjax_bal.config import nearest_choices

    match what:
        case "recipes":
            from fedjax_bal.recipes import RECIPES

            return {name: _recipe(name, function) for name, function in RECIPES.items()}
        case "models":
            from fedjax_bal.models import MODELS, options

            defaults = {name: {key: option.default for key, option in options(name).items()} for name in MODELS}
            takes = {name: _after("takes", _written_out(values, ...)) for name, values in defaults.items()}
            return {name: _text(entry.description, takes[name]) for name, entry in MODELS.items()}
        case "selectors":
            from fedjax_bal.selection import FROM_FEDERATION, SELECTORS

            return _all_described(SELECTORS, skip=("clients_per_round", *FROM_FEDERATION))
        case "partitions":
            from fedjax_bal.data import partition

            skip = ("rng", "labels", "num_clients", *partition.FROM_DATASET)
            also = {name: ", ".join(partition.aliases_of(name)) for name in partition.SCHEMES}
            texts = _all_described(partition.SCHEMES, skip=skip)
            return {name: _text(text, _after("also called", also[name])) for name, text in texts.items()}
        case "datasets":
            from fedjax_bal.data import DATASETS

            return {name: reader.description for name, reader in DATASETS.items()}
        case "metrics":
            from fedjax_bal.metrics import METRICS

            return {name: _metric(metric) for name, metric in METRICS.items()}
        case "optimizers":
            import optax

            from fedjax_bal.config import parameters
            from fedjax_bal.optim import optimizer_names, option_names

            fields = {name: parameters(getattr(optax, name)) for name in optimizer_names()}
            return {
                name: _optax(name, {key: own[key] for key in option_names(name) if key in own})
                for name, own in fields.items()
            }
        case "schedules":
            from fedjax_bal.config import parameters
            from fedjax_bal.optim import schedule_factory, schedule_names

            functions = {name: schedule_factory(name) for name in schedule_names()}
            return {
                name: _described(function) if function.__doc__ else _optax(name, parameters(function))
                for name, function in functions.items()
            }
        case "availability" | "delivery" | "speeds":
            from fedjax_bal.selection import AVAILABILITY, DELIVERY, SPEEDS

            return _all_described({"availability": AVAILABILITY, "delivery": DELIVERY, "speeds": SPEEDS}[what])
        case "configs":
            first = {name: header.partition("\n\n")[0].replace("\n", " ") for name, header in _headers().items()}
            return {name: text.partition(". ")[0].removesuffix(".") + "." for name, text in first.items()}
    raise ValueError(f"list: received {what!r}; {nearest_choices(what, KINDS)}")


def grouped(what: str | None) -> Iterator[tuple[str, dict[str, str]]]:
    """The names of a kind with their texts, in groups with headings; recipes by family, others in one group.

    For None the kinds themselves.
    """
    if what is None:
        yield "", {kind: f"fedjax-bal list {kind}" for kind in KINDS}
        return
    texts = listing(what)
    if what != "recipes":
        yield "", texts
        return
    from fedjax_bal.recipes import family_of

    families: dict[str, dict[str, str]] = {}
    for name, text in texts.items():
        families.setdefault(family_of(name), {})[name] = text
    yield from families.items()


def described_whole(kind: str, name: str) -> str:
    """All that is known of a name: what `listing` says, its docstring or header, and of a recipe its parts and papers.

    Raises:
        ValueError: there is no such kind or name.

    Example:
        >>> "Proximal (Loss)" in described_whole("recipes", "fedprox")
        True
        >>> "Command   fedjax-bal run" in described_whole("configs", "quickstart")
        True
    """
    from fedjax_bal.config import nearest_choices

    names = listing(kind)
    if name not in names:
        raise ValueError(f"list {kind}: received {name!r}; {nearest_choices(name, names)}")
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
    from fedjax_bal.parts import names_of_needs
    from fedjax_bal.recipes import citation

    yield inspect.getdoc(function) or ""
    yield "\n".join([f"Defaults: {_defaults(function) or 'it has no options'}", *_readings(function)])
    recipe = _at_defaults(function)
    if recipe is None:
        return
    yield f"Needs at these defaults: {', '.join(names_of_needs(recipe.parts)) or 'nothing'}"
    parts = []
    for part in recipe.parts:
        roles = [kind.__name__ for kind in type(part).__mro__ if kind.__module__ == "fedjax_bal.methods.roles"]
        # Its docstring, equations and departures from the paper included; the recipe's says what its fields mean.
        sections = re.split(r"\n\n(?=[A-Z]\w+:\n)", inspect.getdoc(type(part)) or "")
        says = "\n\n".join(text for text in sections if not text.startswith(("Attributes:", "Example:")))
        parts.append(f"  {type(part).__name__} ({', '.join(roles)})\n{indent(says, '    ')}")
    yield "\n\n".join(["Parts at these defaults, with their roles:", *(parts or ["  none"])])
    try:
        yield citation(recipe)
    except ValueError:
        yield f"No citation of {recipe.name} is known; `register(..., citation=BIBTEX)` gives one to your own."


def _recipe(name: str, function: Callable[..., Any]) -> str:
    from fedjax_bal.parts import names_of_needs
    from fedjax_bal.recipes import short_citation

    recipe = _at_defaults(function)
    needs = "" if recipe is None else ", ".join(names_of_needs(recipe.parts))
    more = _after("needs", needs), _after("from", short_citation(name))
    return _text(_described(function), *_readings(function), *more)


def _metric(metric: Any) -> str:
    words = ["each evaluated round"] * (metric.of_round is not None) + ["a whole run"] * (metric.of_run is not None)
    return _text(metric.meaning, f"of {' and of '.join(words)}{_after(', in', metric.unit.symbol)}")


def _at_defaults(recipe: Callable[..., Any]) -> Any:
    """The recipe at its defaults; None if one of its parameters has none."""
    parameters = inspect.signature(recipe).parameters.values()
    return None if any(own.default is own.empty for own in parameters) else recipe()


def _readings(recipe: Callable[..., Any]) -> list[str]:
    """The readings that `variant` chooses from, a line each."""
    variants = getattr(recipe, "variants", {}).items()
    return [f"variant={name}: {_written_out(values, ...) or 'the defaults'}" for name, values in variants]


def _headers() -> dict[str, str]:
    """The comments at the top of built-in configurations."""
    from fedjax_bal.config import builtin_configs

    heads = {name: file.read_text(encoding="utf-8").partition("\n\n")[0] for name, file in builtin_configs().items()}
    return {name: head[2:].replace("\n# ", "\n").replace("\n#", "\n") for name, head in heads.items()}


def _all_described(functions: Mapping[str, Callable[..., Any]], skip: Collection[str] = ()) -> dict[str, str]:
    return {name: _described(function, skip) for name, function in functions.items()}


def _described(function: Callable[..., Any], skip: Collection[str] = ()) -> str:
    """The first line of a function's docstring, and its parameters with their defaults."""
    first = (function.__doc__ or "").strip().partition("\n")[0]
    return _text(first, _after("takes", _defaults(function, skip)))


def _defaults(function: Callable[..., Any], skip: Collection[str] = ()) -> str:
    """The parameters of a function with their defaults."""
    parameters = inspect.signature(function).parameters.items()
    defaults = {name: parameter.default for name, parameter in parameters if name not in skip}
    return _written_out(defaults, inspect.Parameter.empty)


def _optax(name: str, fields: Mapping[str, tuple[Any, Any]]) -> str:
    """The text on a function of optax, whose own texts are long."""
    defaults = {key: default for key, (_, default) in fields.items()}
    return _text(f"optax.{name}", _after("takes", _written_out(defaults, ...)))


def _written_out(values: Mapping[str, Any], none: Any) -> str:
    """Parameters as a configuration writes them; `none` stands for the default of one that has to be given."""
    return ", ".join(name if value is none else f"{name}={_written(value)}" for name, value in values.items())


def _written(value: Any) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except TypeError:  # a function, or a number of NumPy, of a plug-in
        return str(getattr(value, "__name__", value))


def _after(word: str, text: str) -> str:
    return text and f"{word} {text}"


def _text(*lines: str) -> str:
    return "\n".join(filter(None, lines))
