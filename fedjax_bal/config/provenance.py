"""The plug-ins that a configuration uses, by name with the digests of their sources: a part of a run's identity."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedjax_bal.config.problems import Problem, received_value
from fedjax_bal.registry import PLUGINS, Plugin

if TYPE_CHECKING:
    from fedjax_bal.config.configuration import Config

_NO_CODE = "; a configuration never loads code: leave the key out, and name the file with --plugin on the command line"


def used_plugins(config: "Config") -> dict[str, str]:
    """The plug-ins that a configuration names anything of, and those with metrics."""
    used = set(_used(config)) if PLUGINS else set()
    return {plugin.name: plugin.digest for plugin in sorted(filter(None, used))}


def plugin_problems(recorded: Any) -> list[Problem]:
    """The differences between the plug-ins that a run has recorded and those that are loaded."""
    if not isinstance(recorded, Mapping):
        return [Problem(("plugins",), f"received {received_value(recorded)}{_NO_CODE}")]
    return [
        Problem(("plugins", str(name)), text) for name, digest in recorded.items() if (text := _differing(name, digest))
    ]


def _differing(name: Any, digest: Any) -> str | None:
    loaded = PLUGINS.get(name)
    if loaded is None:
        return f"received {received_value(digest)}, but no plug-in of this name is loaded; give it with --plugin"
    if loaded.digest == digest:
        return None
    return (
        f"received {received_value(digest)}, but the source that is loaded has the digest {loaded.digest}; load the "
        "one with which this was written, or leave the key plugins out"
    )


def _used(config: "Config") -> Iterator[Plugin | None]:
    from fedjax_bal.data import DATASETS, SCHEMES
    from fedjax_bal.metrics import METRICS
    from fedjax_bal.models import MODELS
    from fedjax_bal.recipes import RECIPES
    from fedjax_bal.selection import SELECTORS

    yield from METRICS.plugins()
    for index in range(len(config.methods)):
        method = config.for_method(index)
        yield DATASETS.plugin(method.dataset.name)
        yield SCHEMES.plugin(method.partition.scheme)
        yield MODELS.plugin(method.model.name)
        yield SELECTORS.plugin(method.selection.name)
        yield from (RECIPES.plugin(spec.name) for spec in method.recipes)
