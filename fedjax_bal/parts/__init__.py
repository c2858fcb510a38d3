"""The composable units that clients and server play."""

from fedjax_bal.parts.augmentation import Augmentation
from fedjax_bal.parts.calibration import LogitCalibration
from fedjax_bal.parts.composition import CompositionProbe
from fedjax_bal.parts.contrast import ModelContrast
from fedjax_bal.parts.control_variates import ControlVariates, LateControlVariates
from fedjax_bal.parts.cropping import CropAndFlip
from fedjax_bal.parts.damped import ParticipatingShare
from fedjax_bal.parts.dcgan import SharedDcgans
from fedjax_bal.parts.dynamic import DynamicRegularisation
from fedjax_bal.parts.fakes import Fakes
from fedjax_bal.parts.faults import Faults, StaleUpdates
from fedjax_bal.parts.fine_tuning import RefinedHead, ShownHead
from fedjax_bal.parts.frozen import FrozenHead
from fedjax_bal.parts.generator import LocalGenerator, SharedGenerator
from fedjax_bal.parts.normalised import NormalisedAveraging
from fedjax_bal.parts.part import Part, part, static
from fedjax_bal.parts.prior import PriorCalibration
from fedjax_bal.parts.proximal import Proximal
from fedjax_bal.parts.resampling import DecayedResampling
from fedjax_bal.parts.restricted import RestrictedSoftmax
from fedjax_bal.parts.robust import Median, NormClipping, TrimmedMean
from fedjax_bal.parts.roles import (
    Batches,
    Deliver,
    Disclose,
    Draw,
    Enlarge,
    Extend,
    Gradient,
    Illustrate,
    Logits,
    Loss,
    Memory,
    Prepare,
    Present,
    Probe,
    Reduce,
    Refine,
    Report,
    Server,
    Statistics,
    Step,
    Trainable,
    Update,
    Weigh,
)
from fedjax_bal.parts.statistics import BATCH_STATISTICS, FreshStatistics, OwnStatistics
from fedjax_bal.parts.transfer import FeatureTransfer

__all__ = [
    "BATCH_STATISTICS",
    "Augmentation",
    "Batches",
    "CompositionProbe",
    "ControlVariates",
    "CropAndFlip",
    "DecayedResampling",
    "Deliver",
    "Disclose",
    "Draw",
    "DynamicRegularisation",
    "Enlarge",
    "Extend",
    "Fakes",
    "Faults",
    "FeatureTransfer",
    "FreshStatistics",
    "FrozenHead",
    "Gradient",
    "Illustrate",
    "LateControlVariates",
    "LocalGenerator",
    "LogitCalibration",
    "Logits",
    "Loss",
    "Median",
    "Memory",
    "ModelContrast",
    "NormClipping",
    "NormalisedAveraging",
    "OwnStatistics",
    "Part",
    "ParticipatingShare",
    "Prepare",
    "Present",
    "PriorCalibration",
    "Probe",
    "Proximal",
    "Reduce",
    "Refine",
    "RefinedHead",
    "Report",
    "RestrictedSoftmax",
    "Server",
    "SharedDcgans",
    "SharedGenerator",
    "ShownHead",
    "StaleUpdates",
    "Statistics",
    "Step",
    "Trainable",
    "TrimmedMean",
    "Update",
    "Weigh",
    "part",
    "static",
]
