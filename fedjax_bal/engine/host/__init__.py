"""The host side of the engine: planning, placement, compilation, memory, faults, and the simulation."""

from fedjax_bal.engine.host.assignment import assign
from fedjax_bal.engine.host.compatibility import check_vocabulary
from fedjax_bal.engine.host.executable import compile_for_backend
from fedjax_bal.engine.host.faults import describe_faults
from fedjax_bal.engine.host.fine_tuning import FineTuner, TunedAccuracies, fine_tune
from fedjax_bal.engine.host.front_door import Result, build_simulation, simulate
from fedjax_bal.engine.host.memory import free_bytes, memory_rows, rows_to_save
from fedjax_bal.engine.host.placement import divide, fetch, replicate
from fedjax_bal.engine.host.round_function import make_round
from fedjax_bal.engine.host.simulation import (
    DispatchResult,
    Simulation,
    Snapshot,
    generated_images,
    shared_prototypes,
    shares_prototypes,
)
from fedjax_bal.engine.host.stack import Member, open_stack, program_of, stacking_key
from fedjax_bal.engine.host.strategy import device_count
