"""XLA's compiler options on this backend."""

from typing import Any

from jax.errors import JaxRuntimeError

from fedjax_bal.target import target_platform

LIBRARY_OPERATIONS = {
    "xla_cpu_experimental_ynn_fusion_type": ",".join(
        f"LIBRARY_FUSION_TYPE_{kind}" for kind in ("INDIVIDUAL_DOT", "INDIVIDUAL_CONVOLUTION")
    )
}
"""Operations that XLA:CPU leaves to its library: products and convolutions, but not sums.

The library splits a long sum among the threads that happen to be free, so that the last digits differ from call to
call as soon as two devices work at a time.
"""


def compile_for_backend(lowered: Any) -> Any:
    """Compiles a lowered program so that it gives the same bits at every call.

    A version of XLA that doesn't know the options compiles without them. See jax issues 39741 (sums that differ between
    calls) and 39257 (sums that crash).
    """
    if target_platform() != "cpu":
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=LIBRARY_OPERATIONS)
    except (JaxRuntimeError, ValueError) as error:
        if not any(name in str(error) for name in LIBRARY_OPERATIONS):
            raise
        return lowered.compile()
