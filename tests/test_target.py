"""The platform that programs are compiled for."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_bal.engine.device import Layout
from fedjax_bal.models.layers import channel_sums
from fedjax_bal.target import compiling_for, target_devices, target_platform

# Programs for another target are compiled without the caches, which later tests would miss.
pytestmark = pytest.mark.slow


def elsewhere(platform):
    return [types.SimpleNamespace(platform=platform)]


def test_jaxs_own_devices_unless_others_are_set():
    assert target_platform() == jax.default_backend()
    with compiling_for(elsewhere("tpu")):
        assert target_platform() == "tpu"
        with compiling_for(elsewhere("cuda")):
            assert target_platform() == "gpu"
        assert target_platform() == "tpu"
    assert list(target_devices()) == jax.devices()


def test_forms_are_those_of_the_target_even_if_they_were_traced_before():
    traced = jax.jit(lambda values: channel_sums(values))
    text = lambda: traced.lower(jnp.ones((4, 3))).as_text()
    assert "dot_general" in text()
    with compiling_for(elsewhere("cuda")):
        assert "dot_general" not in text()
    assert "dot_general" in text()


def test_a_layout_lies_on_the_target():
    devices = jax.devices()[::-1]
    with compiling_for(devices):
        assert list(Layout("vmap", 2, 1).mesh.devices) == list(np.array(devices))
