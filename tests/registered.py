"""Takes back what plug-ins have registered, so that one test's don't reach the next one."""

import pkgutil
import sys

from fedjax_bal import contrib, plugins
from fedjax_bal.analyses import ANALYSES
from fedjax_bal.data import DATASETS, SCHEMES
from fedjax_bal.lab.trackers import TRACKERS
from fedjax_bal.methods.citations import PLUGIN_PAPERS
from fedjax_bal.metrics import METRICS
from fedjax_bal.models import MODELS
from fedjax_bal.recipes import RECIPES
from fedjax_bal.registry import PLUGINS
from fedjax_bal.selection import SELECTORS


def forget():
    """Leaves the package's own entries alone, as in a new process."""
    for registry in (RECIPES, MODELS, SELECTORS, SCHEMES, DATASETS, METRICS, ANALYSES, TRACKERS):
        for name in registry._owners:
            del registry._entries[name]
        registry._owners.clear()
    included = [name for name in PLUGINS if name.startswith(plugins.INCLUDED)]
    for name in [name for name in sys.modules if name.startswith(plugins._PREFIX) or name in included]:
        del sys.modules[name]
    PLUGIN_PAPERS.clear()
    PLUGINS.clear()
    plugins._loaded.clear()
    plugins._digest.cache_clear()


def load_included():
    """Loads all plug-ins that come along, which some of the papers' configurations need."""
    plugins.load_plugins(f"{plugins.INCLUDED}.{module.name}" for module in pkgutil.iter_modules(contrib.__path__))
