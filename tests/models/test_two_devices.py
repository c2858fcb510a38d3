"""The fast convolution on two devices at a time, for as long as a run takes.

XLA's own convolution returns wrong numbers there after some hundred calls, where its shape keeps it from the fast
library.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from fedjax_bal.models.convolution import automatic, of_name

BATCHES = 4
CALLS = 800


def sums(convolve, images, kernel):
    """Channel sums of convolutions of the batches in turn, on two devices at once, `[2, CALLS, O]`."""

    def one(call, carry):
        kernel, seen = carry
        result = convolve(images[call % BATCHES], kernel)
        # The next call waits for this one, as in training.
        return kernel + 0 * result.sum(), seen.at[call].set(result.reshape(-1, kernel.shape[-1]).sum(0))

    def device():
        return lax.fori_loop(0, CALLS, one, (kernel, jnp.zeros((CALLS, kernel.shape[-1]))))[1][None]

    mesh = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,))
    both = jax.shard_map(device, mesh=mesh, in_specs=(), out_specs=PartitionSpec("devices"), check_vma=False)
    return np.asarray(jax.jit(both)())


@pytest.mark.nightly
@pytest.mark.parametrize("form", ["fast", "builtin"])
@pytest.mark.parametrize(("side", "channels", "outputs", "pad"), [(10, 32, 16, 4), (10, 16, 32, 3)])
def test_the_last_call_is_as_right_as_the_first(side, channels, outputs, pad, form):
    if form == "builtin" and automatic.why_not_builtin():
        pytest.skip(automatic.why_not_builtin())
    rng = np.random.default_rng(0)
    images = jnp.array(rng.normal(size=(BATCHES, 50, side, side, channels)), jnp.float32)
    kernel = jnp.array(rng.normal(size=(5, 5, channels, outputs)), jnp.float32)
    pads = ((pad, pad), (pad, pad))
    fast = sums(lambda images, kernel: of_name(form)(images, kernel, (1, 1), pads), images, kernel)
    wanted = [
        lax.conv_general_dilated(batch, kernel, (1, 1), pads, dimension_numbers=("NHWC", "HWIO", "NHWC")).sum((0, 1, 2))
        for batch in images
    ]
    np.testing.assert_allclose(fast[:, :BATCHES], np.broadcast_to(wanted, fast[:, :BATCHES].shape), rtol=1e-3, atol=0.1)
    assert (fast == fast[:1, np.arange(CALLS) % BATCHES]).all()
