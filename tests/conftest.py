"""Set-up for all tests: checked shape annotations, and compiled programs kept between tests."""

import collections
import gc
import importlib
import itertools
import os
import re
import signal
import sys
from pathlib import Path

import hypothesis
import jax
import jax.monitoring
import pytest
from jaxtyping import install_import_hook

MOST_MAPS = 45_000
FEW_PROGRAMS = 200  # compiled since memory maps were last counted
COMPILED = collections.Counter()
SLOW_EXAMPLES = tuple(
    f"fedjax_bal/{place}"
    for place in ("guide/", "contrib/", "engine/host/", "lab/loaded_run", "models/", "report/compared", "testing/")
)
"""Whose docstrings' examples take long."""

# Most of the suite's time is compiling, much of which is making machine code fast that runs for milliseconds. Each
# worker has a core of its own, so that nothing is gained by compiling in several threads.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if jax.__version_info__ < (0, 11):  # XLA ends the process at a flag it does not know, and this one is on its way out
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*FLAGS, os.environ.get("XLA_FLAGS", "")]).strip()

jax_setup = importlib.import_module("fedjax_bal.jax_setup")  # before jax starts, and after its flags are set
# Ctrl-C must reach the commands that tests start, also where pytest runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time, so that a change is not refused for another's bad luck; `--nightly` looks for new ones.
# Neither fails for the time that a busy machine takes.
UNTIMED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("daily", max_examples=40, derandomize=True, **UNTIMED)
hypothesis.settings.register_profile("nightly", max_examples=200, **UNTIMED)

gc.set_threshold(200_000, 50, 100)  # what jax has traced stays, and need not be looked through again and again
install_import_hook("fedjax_bal.balance", "beartype.beartype")
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **about: COMPILED.update(programs=event.endswith("backend_compile_duration"))
)
jax.config.update("jax_num_cpu_devices", 2)  # so that tests meet several devices, whatever the machine
os.environ["JAX_NUM_CPU_DEVICES"] = "2"  # in processes that they start, too


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run the tests marked slow too")
    parser.addoption(
        "--nightly",
        action="store_true",
        help="run the tests marked nightly alone, or with --all those of all kinds; a missing library fails its tests",
    )
    parser.addoption(
        "--method", metavar="NAME", help="run all tests of a method, slow ones too: its own, the batteries"
    )


def pytest_collection_modifyitems(config, items):
    """Marks long examples slow, too, and leaves out what is marked so, unless `--all` is given."""
    for item in items:
        if item.nodeid.startswith(SLOW_EXAMPLES):
            item.add_marker(pytest.mark.slow)
    method = config.getoption("--method")
    if method:
        name = re.compile(rf"(?<![^\W_]){re.escape(method)}(?![^\W_])")  # between anything but letters and digits
        others = [item for item in items if not name.search(item.nodeid)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if name.search(item.nodeid)]
    every, nightly = config.getoption("--all") or method, config.getoption("--nightly")
    kinds = {"quick": not nightly or every, "slow": every, "nightly": nightly}
    kind = lambda item: next((kind for kind in ("nightly", "slow") if item.get_closest_marker(kind)), "quick")
    wanted = [bool(kinds[kind(item)]) for item in items]
    config.hook.pytest_deselected(items=[item for item, own in zip(items, wanted, strict=True) if not own])
    items[:] = list(itertools.compress(items, wanted))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Drops doctest's collectors, below this folder: there are no examples, and helpers would be imported twice."""
    collectors = yield
    return [collector for collector in collectors if type(collector) is pytest.Module]


def pytest_configure(config):
    """Keeps XLA's programs in pytest's cache: most of a test's time is compiling what another one compiled."""
    config.pluginmanager.register(Registrations)
    nightly = config.getoption("--nightly")
    hypothesis.settings.load_profile("nightly" if nightly else "daily")
    if nightly:
        pytest.importorskip = lambda name, **_: importlib.import_module(name)
    if not config.pluginmanager.has_plugin("cacheprovider"):
        return
    os.environ["XDG_CACHE_HOME"] = str(config.cache.mkdir("home"))
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("home") / "fedjax_bal" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.devices()  # from now on there are two, whatever a command that a test runs would like


def pytest_sessionfinish():
    """Spares the collections of garbage with which pytest ends: what jax has traced takes them seconds."""
    gc.freeze()


class Registrations:
    """A plug-in of pytest's of its own: a hook of this file would not be called for the examples of the package."""

    @staticmethod
    def pytest_runtest_teardown():
        """Takes back what a test, or an example, has registered."""
        forget_registrations()

    @staticmethod
    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report():
        """Takes back what the plug-ins that a file imports have registered, so that other files' tests don't vary."""
        report = yield
        forget_registrations()
        return report


def forget_registrations():
    """Takes back all that plug-ins have registered."""
    registry = sys.modules.get("fedjax_bal.registry")
    if registry and registry.PLUGINS:
        import registered  # late: no module of the package may be imported before the hook above

        registered.forget()


@pytest.fixture(autouse=True, scope="session")
def _convolution():
    """Makes "auto" the same form of convolution on all machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedjax_bal.models.convolution.automatic.choice", lambda: ("fast", ""))
        yield


@pytest.fixture
def double():
    """Computes in float64, as the transcriptions do."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _few_programs():
    """Frees compiled programs before there are too many: each takes about 25 memory maps, of which Linux allows 65,530.

    Beyond that XLA dies while it compiles, or reads or writes a compiled program. Counting takes 20 ms.
    """
    yield
    maps = Path("/proc/self/maps")
    if COMPILED["programs"] >= FEW_PROGRAMS and maps.exists():
        COMPILED.clear()
        if maps.read_bytes().count(b"\n") > MOST_MAPS:
            jax.clear_caches()
            gc.collect()
