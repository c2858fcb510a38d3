"""The composable units that clients and server play."""

from fedjax_bal.parts.control_variates import ControlVariates
from fedjax_bal.parts.part import Part, part, static
from fedjax_bal.parts.prior import PriorCalibration
from fedjax_bal.parts.proximal import Proximal
from fedjax_bal.parts.roles import Draw, Gradient, Logits, Loss, Memory, Prepare, Report, Server, Step, Weigh
from fedjax_bal.parts.transfer import FeatureTransfer

__all__ = [
    "ControlVariates",
    "Draw",
    "FeatureTransfer",
    "Gradient",
    "Logits",
    "Loss",
    "Memory",
    "Part",
    "Prepare",
    "PriorCalibration",
    "Proximal",
    "Report",
    "Server",
    "Step",
    "Weigh",
    "part",
    "static",
]
