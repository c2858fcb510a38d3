"""The CPU as one device for each core: split before jax starts, with one message where it's too late."""

import os
import subprocess
import sys
import warnings

import jax
import pytest

from fedjax_bal.engine.host import cpu_devices, device_count


@pytest.fixture
def late(monkeypatch):
    """As if jax had started, with fewer devices than cores, before the package was used."""
    monkeypatch.setattr(cpu_devices, "_is_set", lambda: False)
    monkeypatch.setattr(cpu_devices, "cores", lambda: 64)
    cpu_devices.warn_of_idle_cores.cache_clear()
    yield
    cpu_devices.warn_of_idle_cores.cache_clear()


def test_one_message_says_how_to_use_all_cores(late):
    with pytest.warns(UserWarning, match=r'on 2 of 64 cores, .* jax.config.update\("jax_num_cpu_devices", 64\)'):
        assert device_count("auto") == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device_count("auto") == 2


def test_no_message_for_a_number_that_was_asked_for(late):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device_count(1) == 1


def test_no_message_where_the_user_has_set_the_number(monkeypatch):
    monkeypatch.setattr(cpu_devices, "cores", lambda: 64)
    cpu_devices.warn_of_idle_cores.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device_count("auto") == jax.device_count() == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "code, devices",
    [
        ("split_cpu()", cpu_devices.cores()),
        ("split_cpu(3)", 3),
        ("pass", 5),
        ("split_cpu(999)", max(64, cpu_devices.cores())),
    ],
)
def test_before_jax_starts_the_number_is_that_of_the_cores_or_what_is_asked_for(code, devices):
    begin = "" if code != "pass" else 'import jax; jax.config.update("jax_num_cpu_devices", 5); '
    program = f"{begin}from fedjax_bal.engine.host import device_count, split_cpu; {code}; print(device_count('auto'))"
    unset = {name: value for name, value in os.environ.items() if name not in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=unset)
    assert done.stdout == f"{devices}\n", done.stderr
