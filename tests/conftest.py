"""Set-up for all tests: checked shape annotations, and compiled programs kept between tests."""

import os

import jax
from jaxtyping import install_import_hook

install_import_hook("fedjax_bal.balance", "beartype.beartype")
jax.config.update("jax_num_cpu_devices", 2)  # so that tests meet several devices


def pytest_configure(config):
    """Keeps XLA's programs in pytest's cache: most of a test's time is compiling what another one compiled."""
    if not config.pluginmanager.has_plugin("cacheprovider"):
        return
    os.environ["XDG_CACHE_HOME"] = str(config.cache.mkdir("home"))
    jax.config.update("jax_compilation_cache_dir", str(config.cache.mkdir("home") / "fedjax_bal" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
