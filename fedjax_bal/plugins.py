"""Plug-ins: recipes, parts, models, selectors, partitioners, data sets and metrics from outside the package.

A plug-in is a Python file, or a package, whose import calls `register`. The command line loads it with `--plugin`, or
as an entry point of an installed package in the group `fedjax_bal.plugins`; Python code imports it. A configuration can
then use the registered names, but never imports code itself.
"""

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedjax_bal.annotations import parameters, signature
from fedjax_bal.config import KEYS_OF_METHODS, Sections
from fedjax_bal.registry import PLUGINS, Plugin, PluginError, error_line, format_error
from fedjax_bal.validate import is_number, one_of

T = TypeVar("T")

GROUP = "fedjax_bal.plugins"
"""The group of entry points."""

INCLUDED = "fedjax_bal.contrib"
"""The package of the plug-ins that come along, which are loaded like others: `--plugin fedjax_bal.contrib.privacy`."""
TRACKERS = f"{INCLUDED}.trackers"
"""The plug-in that `--track` loads."""
_PREFIX = "fedjax_bal_plugin_"  # prevents clashes of modules that are loaded from a file with other modules
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
COLUMNS = frozenset(
    (
        *("method", "seed", "round", "wall_s", "point", "status", "failure", "composition"),
        *("confusion_matrix", "program", "runs_together", "compile_s", "device_bytes"),
        *("client_updates_per_s", "samples_per_s"),
    )
)
_loaded: dict[str, None] = {}  # absolute paths, and modules, of loaded plug-ins


def register(kind: str, name: str, *, citation: str = "") -> Callable[[T], T]:
    """Registers a function or a class, so that a configuration can name it.

    | kind | registered object | use |
    |---|---|---|
    | `recipe` | a function that returns a `Recipe` | `methods: [{recipe: NAME}]` |
    | `part` | a class of parts | a recipe with this part only, to be combined with others |
    | `model` | `f(num_classes, input_shape, ...)`, returns a `Model` | `model: {name: NAME}` |
    | `selector` | `f(clients_per_round, ...)`, returns a `Selector` | `selection: {name: NAME}` |
    | `partitioner` | `f(rng, labels, num_clients, ...)`, returns row numbers | `partition: {scheme: NAME}` |
    | `dataset` | a function that returns a `Dataset`, or a `Reader` | `dataset: {name: NAME}` |
    | `metric` | `f(result: RoundResult)`, returns a number or None; or a `Metric` | `metrics.jsonl`, tables, reports |
    | `analysis` | a subclass of `fedjax_bal.analyses.Analysis` | `evaluation: {analyses: [NAME]}` |
    | `tracker` | `f(folder)`, returns a `fedjax_bal.lab.trackers.Tracker` | `--track NAME` |

    All other parameters of a function, and the fields of a part, are options next to the name, checked by annotations:
    `float`, `Annotated[float, Ge(0)]`, `Literal["a", "b"]`.

    Args:
        kind: a kind of the table.
        name: a new name, of letters, digits and `_`.
        citation: BibTeX of the papers behind a recipe or a part, for `fedjax_bal.citation` and the list of recipes.

    Returns:
        A decorator that returns its argument.

    Raises:
        ValueError: the kind is unknown, the name exists, or the object doesn't fit the kind.

    Example:
        >>> from fedjax_bal import recipes
        >>> from fedjax_bal.config import load_config
        >>> @register("recipe", "strong_fedprox")
        ... def strong_fedprox(mu: float = 1.0):
        ...     '''FedProx with a strong penalty.'''
        ...     return recipes.Recipe("strong_fedprox", recipes.fedprox(mu).parts)
        >>> load_config(None, ["methods=[{recipe: strong_fedprox, mu: 2}]"]).methods[0].recipes[0].hyperparameters
        {'mu': 2.0}
    """
    one_of("register: kind", kind, _KINDS)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"register: received the name {name!r}, must be letters, digits and _, beginning with a letter"
        )
    plugin = _plugin_of(sys._getframe(1).f_globals["__name__"])  # of the module that calls `register`

    def add(registered: T) -> T:
        package, registry, entry = _KINDS[kind]
        what = f"{kind} {name!r}"
        try:
            entries = getattr(importlib.import_module(f"fedjax_bal.{package}"), registry)
            entries.add(name, entry(name, registered), plugin, getattr(registered, "__qualname__", what))
            if citation and registry != "RECIPES":
                raise ValueError("received a citation, which only recipes and parts have: leave it out")
            if citation:
                from fedjax_bal.recipes import cite

                cite(name, citation)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from error
        return registered

    return add


def load_plugins(targets: Iterable[str] = ()) -> None:
    """Loads the given plug-ins and those of installed packages, each only once.

    Args:
        targets: files, folders of packages, or modules.

    Raises:
        PluginError: a plug-in is missing or its import fails; the message names file and line.
    """
    for entry in entry_points(group=GROUP):
        _load(entry.module, f"the plug-in {entry.name} of an installed package")
    for target in targets:
        _load(target, f"--plugin {target:.100}")


def loaded_plugins() -> tuple[str, ...]:
    """Returns the plug-ins that `load_plugins` has loaded, for other processes: absolute paths, and modules."""
    return tuple(_loaded)


def plugin_sources(names: Collection[str]) -> dict[str, Path]:
    """Returns the files and folders from which `load_plugins` has loaded plug-ins of these names, by their file names.

    Plug-ins loaded as modules aren't among them.
    """
    sources = [_source(Path(target)) for target in _loaded if os.sep in target]
    return {source.name: source for source in sources if _module_name(source).removeprefix(_PREFIX) in names}


def plugin_copies(names: Collection[str]) -> dict[str, bytes]:
    """Returns the content of the Python files of `plugin_sources`, by their paths in a folder of copies."""
    sources = plugin_sources(names).values()
    files = {file.relative_to(source.parent).as_posix(): file for source in sources for file in _files(source)}
    return {path: file.read_bytes() for path, file in files.items()}


def _load(target: str, named: str) -> None:
    # A bare name is a module if there is one, else a file or a folder.
    module = target.partition(".")[0]
    spec = importlib.util.find_spec(module) if module.isidentifier() and not target.endswith(".py") else None
    if spec is not None and spec.origin is not None:
        file = None
        source = _source(Path(spec.origin))
    else:
        # Functions of os.path accept any text; those of pathlib raise errors for a null character or a long name.
        path = os.path.join(target, "__init__.py") if os.path.isdir(target) else target
        if not os.path.isfile(path) or not path.endswith(".py"):
            raise PluginError(
                f"{named}: there is no Python file or module {target!r:.200}; give a file, the folder of a package, or "
                "an installed module"
            )
        file = Path(os.path.realpath(path))
        source = _source(file)
    key = str(file or target)
    if key in _loaded:
        return
    try:
        importlib.import_module(target) if file is None else _execute(file, source)
    except (Exception, SystemExit) as error:
        line = error_line(error, [source])
        raise PluginError(f"{named}: {line and f'{line}: '}{format_error(error)}") from error
    _loaded[key] = None


def _execute(file: Path, source: Path) -> None:
    """Imports a file under a prefixed module name."""
    name = _module_name(source)
    if name in sys.modules:
        raise ValueError(f"another plug-in has this name, {sys.modules[name].__file__}; rename one of them")
    folders = [str(source)] if source != file else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        for key in [key for key in sys.modules if key.partition(".")[0] == name]:
            del sys.modules[key]
        raise


def _source(file: Path) -> Path:
    """Returns the file of a module, or the folder of a package."""
    return file.parent if file.name == "__init__.py" else file


def _module_name(source: Path) -> str:
    return _PREFIX + source.stem.replace(".", "_")


def _plugin_of(module: str) -> Plugin:
    """Returns the plug-in to which a module belongs: its file, or its outermost package."""
    top = sys.modules[module.partition(".")[0]]
    file = getattr(top, "__file__", None)
    if module.startswith(f"{INCLUDED}."):
        # Like the package itself, it may be a newer version when a run resumes.
        plugin = Plugin(".".join(module.split(".")[:3]), None, "included")
    elif file is None:
        plugin = Plugin(top.__name__, None, "interactive")
    else:
        source = _source(Path(file).resolve())
        name = source.stem if top.__name__ == "__main__" else top.__name__.removeprefix(_PREFIX)
        plugin = Plugin(name, source, _digest(source))
    PLUGINS[plugin.name] = plugin
    return plugin


@functools.cache
def _digest(source: Path) -> str:
    digest = hashlib.sha256()
    for file in _files(source):
        content = file.read_bytes()
        digest.update(os.fsencode(f"{file.relative_to(source.parent).as_posix()} {len(content)}\n") + content)
    return digest.hexdigest()[:16]


def _files(source: Path) -> list[Path]:
    """Returns a plug-in's Python files: of a package all but hidden ones; links to folders aren't followed."""
    if not source.is_dir():
        return [source]
    files = [file for file in source.rglob("*.py") if file.is_file()]  # no dead link, pipe or device
    return sorted(file for file in files if not any(part[0] == "." for part in file.relative_to(source).parts))


def _recipe(name: str, function: Any) -> Any:
    from fedjax_bal.recipes import Recipe

    _check_parameters(function, KEYS_OF_METHODS)
    return _checked(name, function, lambda made, _: isinstance(made, Recipe), "a Recipe")


def _part(name: str, kind: Any) -> Any:
    """Builds a recipe with this part only."""
    from fedjax_bal.parts import Part
    from fedjax_bal.recipes import Recipe

    if not (isinstance(kind, type) and issubclass(kind, Part) and "__dataclass_fields__" in vars(kind)):
        raise ValueError(f"received {kind!r:.80}, must be a class of parts: a role's subclass with @part above it")
    _check_parameters(kind, KEYS_OF_METHODS)

    @functools.wraps(kind, updated=())
    def recipe(**fields: Any) -> Any:
        return Recipe(name, (kind(**fields),))

    recipe.__signature__ = signature(kind)  # type: ignore[attr-defined]
    return recipe


def _model(name: str, function: Any) -> Any:
    from fedjax_bal.models import own_model
    from fedjax_bal.types import Model

    _check_parameters(function, _keys("model") - {"convolution"}, ("num_classes", "input_shape"))
    build = _checked(name, function, lambda made, _: isinstance(made, Model), "a fedjax_bal Model")
    return own_model(build, _first_line(function))


def _selector(name: str, function: Any) -> Any:
    from fedjax_bal.selection import FROM_FEDERATION, Selector

    _check_parameters(function, _keys("selection"), ("clients_per_round",), FROM_FEDERATION)
    return _checked(name, function, lambda made, _: isinstance(made, Selector), "a Selector")


def _partitioner(name: str, function: Any) -> Any:
    from fedjax_bal.data import FROM_DATASET, resolve

    if resolve(name).scheme != name:
        raise ValueError(f"received the name {name!r}, which exists already, for {resolve(name).scheme}")
    _check_parameters(function, _keys("partition"), ("rng", "labels", "num_clients"), FROM_DATASET)
    fits = lambda made, args: isinstance(made, list | tuple) and len(made) == args[2]
    return _checked(name, function, fits, "a list with the row numbers of each of num_clients clients")


def _dataset(name: str, entry: Any) -> Any:
    from fedjax_bal.data import Reader
    from fedjax_bal.types import Dataset

    if isinstance(entry, Reader):
        return dataclasses.replace(entry, name=name)
    _check_parameters(entry, _keys("dataset") | {"mean", "std"})
    read = _checked(name, entry, lambda made, _: isinstance(made, Dataset), "a Dataset")
    return Reader(name=name, description=_first_line(entry), read=read, origin="own")


def _metric(name: str, entry: Any) -> Any:
    from fedjax_bal.metrics import OWN, Column, Metric, Unit

    if name in COLUMNS:
        raise ValueError(f"received the name {name!r}, which another column has; choose another")
    if isinstance(entry, Metric):
        return dataclasses.replace(entry, name=name)
    if len(signature(entry).parameters) != 1:
        raise ValueError(f"takes {signature(entry)}, must take a RoundResult alone")
    numeric = lambda made, _: made is None or is_number(made) or isinstance(made, np.number)
    value = _checked(name, entry, numeric, "a number, or None")
    meaning = (inspect.getdoc(entry) or "").partition("\n")[0]
    return Metric(name, meaning, value, "last", Column(OWN, name.replace("_", " ")), Unit("", 1, ".4g"))


def _analysis(name: str, kind: Any) -> Any:
    from fedjax_bal.analyses import Analysis

    if not (isinstance(kind, type) and issubclass(kind, Analysis)):
        raise ValueError(f"received {kind!r:.80}, must be a subclass of fedjax_bal.analyses.Analysis")
    _check_parameters(kind, ())
    return kind


_KINDS: dict[str, tuple[str, str, Callable[[str, Any], Any]]] = {
    "recipe": ("recipes", "RECIPES", _recipe),
    "part": ("recipes", "RECIPES", _part),
    "model": ("models", "MODELS", _model),
    "selector": ("selection", "SELECTORS", _selector),
    "partitioner": ("data", "SCHEMES", _partitioner),
    "dataset": ("data", "DATASETS", _dataset),
    "metric": ("metrics", "METRICS", _metric),
    "analysis": ("analyses", "ANALYSES", _analysis),
    "tracker": ("lab", "TRACKERS", lambda name, tracker: tracker),
}
"""For each kind: package and name of its registry, and the function that builds an entry from a registered object."""


_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _keys(section: str) -> frozenset[str]:
    """Returns the common keys of a section, next to which the options of a name are written."""
    kind = Sections.child(section)
    return kind.common() if kind else frozenset()


def _check_parameters(
    function: Any, reserved: Collection[str], first: tuple[str, ...] = (), given: Collection[str] = ()
) -> None:
    """Rejects a function that lacks the first parameters, or has parameters that can't be set."""
    settings = {key: it for key, it in signature(function).parameters.items() if it.kind not in _ANY}
    if tuple(settings)[: len(first)] != first:
        raise ValueError(f"takes ({', '.join(settings)}), must take {', '.join(first)} first")
    settable = {*first, *given, *parameters(function)}
    for name, parameter in settings.items():
        if name not in settable and parameter.default is parameter.empty:
            raise ValueError(f"its parameter {name} needs an annotation: int, float, bool, str, or a list of them")
        if name in reserved and name not in first:
            raise ValueError(f"its parameter {name} needs another name: this is a key of the configuration already")


def _checked(name: str, function: Any, fits: Callable[[Any, tuple[Any, ...]], bool], wanted: str) -> Callable[..., Any]:
    """Wraps a function so that its results are checked."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        if not fits(made, args):
            code = inspect.unwrap(function).__code__
            line = f"{code.co_filename}, line {code.co_firstlineno}"
            raise PluginError(f"{line}: {name} returned {made!r:.80}, must return {wanted}")
        return made

    call.__signature__ = signature(function)  # type: ignore[attr-defined]
    return call


def _first_line(function: Any) -> str:
    return next(iter((function.__doc__ or "").strip().splitlines()), "without a description")
