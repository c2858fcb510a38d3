"""The units of behaviour of clients and server, which recipes combine."""

from fedjax_bal.parts.astraea import Augmentation
from fedjax_bal.parts.auxiliary import BALANCED
from fedjax_bal.parts.balanced_softmax import PriorCalibration
from fedjax_bal.parts.batch_statistics import BATCH_STATISTICS, FreshStatistics, OwnStatistics
from fedjax_bal.parts.cbfl_fakes import Fakes
from fedjax_bal.parts.cbfl_generator import LocalGenerator, SharedGenerator
from fedjax_bal.parts.cropping import CropAndFlip
from fedjax_bal.parts.dcgan import SharedDcgans
from fedjax_bal.parts.faults import Faults, StaleUpdates
from fedjax_bal.parts.fedavg_ft import RefinedHead
from fedjax_bal.parts.fedbabu import FrozenHead
from fedjax_bal.parts.feddyn import DynamicRegularisation
from fedjax_bal.parts.fedlc import LogitCalibration
from fedjax_bal.parts.fednova import NormalisedAveraging
from fedjax_bal.parts.fedprox import Proximal
from fedjax_bal.parts.fedrs import RestrictedSoftmax
from fedjax_bal.parts.flcir import CompositionProbe, ParticipatingShare
from fedjax_bal.parts.iwds import SCHEDULES, DecayedResampling
from fedjax_bal.parts.moon import ModelContrast
from fedjax_bal.parts.part import Part, RunSetting, part, parts_with, static
from fedjax_bal.parts.rebafl import FeatureTransfer
from fedjax_bal.parts.robust import Median, NormClipping, TrimmedMean
from fedjax_bal.parts.roles import (
    Batches,
    Deliver,
    Draw,
    Gradient,
    Logits,
    Loss,
    Memory,
    Prepare,
    Probe,
    Reduce,
    Refine,
    Report,
    Server,
    Start,
    Step,
    Update,
    Weigh,
)
from fedjax_bal.parts.scaffold import ControlVariates, LateControlVariates

__all__ = [
    "BALANCED",
    "BATCH_STATISTICS",
    "SCHEDULES",
    "Augmentation",
    "Batches",
    "CompositionProbe",
    "ControlVariates",
    "CropAndFlip",
    "DecayedResampling",
    "Deliver",
    "Draw",
    "DynamicRegularisation",
    "Fakes",
    "Faults",
    "FeatureTransfer",
    "FreshStatistics",
    "FrozenHead",
    "Gradient",
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
    "PriorCalibration",
    "Probe",
    "Proximal",
    "Reduce",
    "Refine",
    "RefinedHead",
    "Report",
    "RestrictedSoftmax",
    "RunSetting",
    "Server",
    "SharedDcgans",
    "SharedGenerator",
    "StaleUpdates",
    "Start",
    "Step",
    "TrimmedMean",
    "Update",
    "Weigh",
    "part",
    "parts_with",
    "static",
]
