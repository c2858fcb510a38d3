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

from fedjax_bal.annotations import parameters
from fedjax_bal.cli.arguments import Plugins
from fedjax_bal.cli.console import names_table

PAGES = Path(__file__).parents[1] / "guide"
KINDS = {
    "recipes": "methods, alone or combined",
    "models": "networks",
    "selectors": "rules that choose the clients of a round",
    "partitions": "ways to distribute rows over clients",
    "datasets": "images and tables (see also fedjax-bal data list)",
    "metrics": "measurements of rounds and runs",
    "analyses": "analyses of trained models, from plug-ins",
    "optimizers": "optimizers of clients and server",
    "schedules": "learning-rate schedules",
    "availability": "which clients can be selected",
    "delivery": "which updates arrive",
    "speeds": "how fast clients train",
    "configs": "built-in configurations: papers' tables, protocols, sweeps",
}


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
    page: Annotated[str | None, typer.Argument(metavar="[PAGE]", help="Default: list the pages.")] = None,
) -> Iterator[str | Table | Markdown]:
    """Show a page of the guide in the terminal."""
    if page is None:
        for section, pages in guide_contents().items():
            yield f"\n{section}:"
            yield names_table((name, [meaning]) for name, meaning in pages.items())
        return
    files = {file.stem: file for file in PAGES.glob("*.md")}
    if page not in files:
        from fedjax_bal.config import nearest_choices

        raise ValueError(f"guide: received {page!r}; {nearest_choices(page, files)}")
    yield Markdown(files[page].read_text(encoding="utf-8"))


def guide_contents() -> dict[str, dict[str, str]]:
    """Returns the guide's pages and what each is for, by section, from `contents.md`, which declares their order."""
    sections: dict[str, dict[str, str]] = {}
    for line in (PAGES / "contents.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            pages = sections.setdefault(line.removeprefix("## "), {})
        elif entry := re.match(r"- \[(.+?)\]\((\w+)\.md\): (.*)", line):
            meaning = re.sub(r"\[(.+?)\]\(.+?\)", r"\1", entry[3])
            pages[entry[2]] = f"{entry[1]}: {meaning}"
    return sections


def list_names(
    what: Annotated[str | None, typer.Argument(metavar="[KIND]", help="Default: list the kinds.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Describe this name in full.")] = None,
    plugin: Plugins = None,
) -> Iterator[str | Table]:
    """List everything that a configuration can name: methods, models, data sets, metrics, ..."""
    what = "recipes" if what == "methods" else what
    if what is None:
        yield names_table((kind, [meaning]) for kind, meaning in KINDS.items())
        yield "\nfedjax-bal list KIND shows its names, fedjax-bal list KIND NAME describes one"
        return
    if name is not None:
        yield describe_name(what, name)
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
    if what in (registries := _registries()):
        functions, skip = registries[what]
        return {
            name: _text(_first_line(function), takes=_takes(function, skip), **_details(what, name, function))
            for name, function in functions.items()
        }
    match what:
        case "models":
            from fedjax_bal.models import MODELS, options

            return {name: _text(model.description, takes=_defaults(options(name))) for name, model in MODELS.items()}
        case "datasets":
            from fedjax_bal.data import DATASETS

            return {name: reader.description for name, reader in DATASETS.items()}
        case "metrics":
            from fedjax_bal.metrics import METRICS

            return {name: _metric_summary(metric) for name, metric in METRICS.items()}
        case "optimizers":
            import optax

            from fedjax_bal.optim import optimizer_factory, optimizer_names, option_names

            texts = {}
            for name in optimizer_names():
                known = parameters(optimizer_factory(name))
                taken = {key: known[key] for key in option_names(name) if key in known}
                home = "optax" if hasattr(optax, name) else "optax.contrib"
                texts[name] = _text(f"{home}.{name}", takes=_defaults(taken))
            return texts
        case "schedules":
            from fedjax_bal.optim import schedule_factory, schedule_names

            texts = {}
            for name in schedule_names():
                made = schedule_factory(name)
                ours = _text(_first_line(made), takes=_takes(made))
                texts[name] = ours if made.__doc__ else _text(f"optax.{name}", takes=_defaults(parameters(made)))
            return texts
        case "configs":
            first = {name: header.partition("\n\n")[0].replace("\n", " ") for name, header in _headers().items()}
            return {name: text.partition(". ")[0].removesuffix(".") + "." for name, text in first.items()}
    from fedjax_bal.config import nearest_choices

    raise ValueError(f"list: received {what!r}; {nearest_choices(what, KINDS)}")


def describe_name(kind: str, name: str) -> str:
    """Describes a name in full: docstring or header, and a recipe's parts and papers; otherwise as `listing` does.

    Raises:
        ValueError: the kind or name doesn't exist.

    Example:
        >>> "Proximal (Loss)" in describe_name("recipes", "fedprox")
        True
        >>> "Command   fedjax-bal run" in describe_name("configs", "quickstart")
        True
    """
    names = listing(kind)
    if name not in names:
        from fedjax_bal.config import nearest_choices

        raise ValueError(f"list {kind}: received {name!r}; {nearest_choices(name, names, kind=kind)}")
    if kind == "configs":
        return _headers()[name]
    if kind not in (registries := _registries()):
        return names[name]
    function = registries[kind][0][name]
    return "\n\n".join(_whole_recipe(function)) if kind == "recipes" else inspect.getdoc(function) or ""


def _registries() -> dict[str, tuple[Mapping[str, Callable[..., Any]], tuple[str, ...]]]:
    """Returns the kinds that are functions: their registry, and the parameters that a configuration doesn't set."""
    from fedjax_bal import selection
    from fedjax_bal.analyses import ANALYSES
    from fedjax_bal.data import FROM_DATASET, SCHEMES
    from fedjax_bal.recipes import RECIPES

    return {
        "recipes": (RECIPES, ()),
        "selectors": (selection.SELECTORS, ("clients_per_round", *selection.FROM_FEDERATION)),
        "partitions": (SCHEMES, ("rng", "labels", "num_clients", *FROM_DATASET)),
        "analyses": (ANALYSES, ()),
        "availability": (selection.PATTERNS, ()),
        "delivery": (selection.PATTERNS, ()),
        "speeds": (selection.SPEEDS, ()),
    }


def _details(kind: str, name: str, function: Callable[..., Any]) -> dict[str, str]:
    """Returns what is known of a recipe or a partition beyond its parameters, by label."""
    if kind == "partitions":
        from fedjax_bal.data import partition

        return {"also_called": ", ".join(partition.aliases_of(name))}
    if kind != "recipes":
        return {}
    from fedjax_bal.parts import names_of_needs
    from fedjax_bal.recipes import short_citation

    recipe = _at_defaults(function)
    needs = ", ".join(names_of_needs(recipe.parts)) if recipe else ""
    return {**_variants(function), "needs": needs, "from": short_citation(name)}


def _metric_summary(metric: Any) -> str:
    measured = [metric.of_round and "of each evaluated round", metric.of_run and "of a whole run"]
    unit = f", in {metric.unit.symbol}" if metric.unit.symbol and metric.unit.factor == 1 else ""
    return f"{metric.meaning}\n{' and '.join(filter(None, measured))}{unit}"


def _whole_recipe(function: Callable[..., Any]) -> Iterator[str]:
    from fedjax_bal.parts import Part, names_of_needs
    from fedjax_bal.recipes import citation

    yield inspect.getdoc(function) or ""
    yield _text(f"Defaults: {_takes(function) or 'it has no options'}", **_variants(function))
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
        yield f"No citation is known for {recipe.name}; `register(..., citation=BIBTEX)` adds one to your own recipe."


def _at_defaults(recipe: Callable[..., Any]) -> Any:
    """Builds the recipe with its defaults; None if a parameter has no default."""
    parameters = inspect.signature(recipe).parameters.values()
    return None if any(parameter.default is parameter.empty for parameter in parameters) else recipe()


def _variants(recipe: Callable[..., Any]) -> dict[str, str]:
    variants = getattr(recipe, "variants", {}).items()
    return {f"variant={name}:": format_parameters(values) or "the defaults" for name, values in variants}


def _headers() -> dict[str, str]:
    """Returns the header comments of built-in configurations."""
    from fedjax_bal.config import builtin_configs

    heads = {name: file.read_text(encoding="utf-8").partition("\n\n")[0] for name, file in builtin_configs().items()}
    return {name: head[2:].replace("\n# ", "\n").replace("\n#", "\n") for name, head in heads.items()}


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().partition("\n")[0]


def _takes(function: Callable[..., Any], skip: Collection[str] = ()) -> str:
    """Describes the parameters of a function with their defaults."""
    known = inspect.signature(function).parameters.values()
    return format_parameters({p.name: ... if p.default is p.empty else p.default for p in known if p.name not in skip})


def _defaults(fields: Mapping[str, tuple[Any, Any]]) -> str:
    """Describes parameters, given as annotations and defaults."""
    return format_parameters({key: default for key, (_, default) in fields.items()})


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


def _text(first: str, **labelled: str) -> str:
    """Adds lines with labels (`also_called` is shown as "also called") to a text, leaving out empty ones."""
    return "\n".join([first, *(f"{label.replace('_', ' ')} {text}" for label, text in labelled.items() if text)])
