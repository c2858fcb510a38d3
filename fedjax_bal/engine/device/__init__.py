"""The compiled program: a round, clients' local training, the owner of the client axis, and evaluation."""

from fedjax_bal.engine.device.accumulator import ChainWeights
from fedjax_bal.engine.device.chain import ChainClients, RoundInputs
from fedjax_bal.engine.device.client_axis import over_chains
from fedjax_bal.engine.device.debug import is_uncompiled
from fedjax_bal.engine.device.drawing import purpose_key, shuffled, training_key
from fedjax_bal.engine.device.evaluation import (
    VALIDATION,
    LocalTest,
    TestSet,
    client_hits_shape,
    hits_by_client,
    in_batches,
    padded,
)
from fedjax_bal.engine.device.layout import Assignment, Layout
from fedjax_bal.engine.device.leaves import PERSONAL, evaluated_memory
from fedjax_bal.engine.device.local_training import mean_cross_entropy
from fedjax_bal.engine.device.program import (
    closing_traffic_of,
    dispatch,
    dispatch_stacked,
    evaluate_model,
    evaluated_model,
    exhibits,
    init_state,
    initial_variables,
    model_of_client,
    state_of,
    traffic_of,
)
from fedjax_bal.engine.device.round import run_round
from fedjax_bal.engine.device.run_axis import stack_federations
from fedjax_bal.engine.device.setting import Setting, at_precision, matmul_precision
from fedjax_bal.engine.device.state import DispatchPlan, Info, State
