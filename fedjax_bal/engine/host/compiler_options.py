"""XLA's compiler options for a platform."""

from typing import Any

from jax.errors import JaxRuntimeError

from fedjax_bal.target import target_platform
from fedjax_bal.xla_flags import LIBRARY_OPERATIONS

GRAPHS = {
    "xla_gpu_enable_command_buffer": ",".join(
        ("FUSION", "CUBLAS", "CUBLASLT", "CUSTOM_CALL", "CUDNN", "DYNAMIC_SLICE_FUSION", "CONDITIONAL", "WHILE")
    )
}
"""Operations that XLA:GPU joins to CUDA graphs: its own choice, and loops.

All loops of a dispatch have lengths that only the device knows; outside of graphs each turn waits for the host.
"""


def compile_for_backend(lowered: Any) -> Any:
    """Compiles a lowered program for the target; on CPUs so that it gives the same bits at every call.

    A version of XLA that doesn't know the options compiles without them. See jax issues 39741 (sums that differ between
    calls) and 39257 (sums that crash).
    """
    options = {"cpu": LIBRARY_OPERATIONS, "gpu": GRAPHS}.get(target_platform(), {})
    try:
        return lowered.compile(compiler_options=options)
    except (JaxRuntimeError, ValueError) as error:
        if not any(name in str(error) for name in options):
            raise
        return lowered.compile()
