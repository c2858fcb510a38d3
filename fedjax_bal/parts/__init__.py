"""The units of behaviour of clients and server, which recipes combine.

A part plays one or more roles, which decide when it runs, what it sees and how several parts combine; the guide,
`fedjax_bal/guide/roles.md`, has a table of all roles. On clients the context is a `Context`, on the server a
`ServerContext`.
"""

from fedjax_bal.parts.accountant import epsilon
from fedjax_bal.parts.astraea import Augmentation
from fedjax_bal.parts.auxiliary import BALANCED, SERVER_ROWS
from fedjax_bal.parts.balanced_softmax import PriorCalibration
from fedjax_bal.parts.balancefl import PredictionEntropy
from fedjax_bal.parts.batch_statistics import BATCH_STATISTICS, FreshStatistics, OwnStatistics
from fedjax_bal.parts.cbfl_fakes import Fakes
from fedjax_bal.parts.cbfl_generator import LocalGenerator, SharedGenerator
from fedjax_bal.parts.ccvr import VirtualRepresentations
from fedjax_bal.parts.class_balanced import ClassBalancedLoss
from fedjax_bal.parts.class_counts import SCOPES
from fedjax_bal.parts.climb import DualWeights
from fedjax_bal.parts.creff import FeatureMatching
from fedjax_bal.parts.cropping import CropAndFlip, Cutout
from fedjax_bal.parts.dcgan import SharedDcgans
from fedjax_bal.parts.ditto import SeparateModel
from fedjax_bal.parts.equal_weights import EqualWeights
from fedjax_bal.parts.faults import Faults, StaleUpdates
from fedjax_bal.parts.feature_skew import NoiseByClient, RotationByClient
from fedjax_bal.parts.fedacg import BeforeLookahead
from fedjax_bal.parts.fedavg_ft import RefinedHead
from fedjax_bal.parts.fedbabu import FrozenHead
from fedjax_bal.parts.fedcm import ClientMomentum
from fedjax_bal.parts.feddecorr import Decorrelation
from fedjax_bal.parts.feddisco import DiscrepancyWeights
from fedjax_bal.parts.feddyn import DynamicRegularisation
from fedjax_bal.parts.fedetf import SimplexClassifier
from fedjax_bal.parts.fedexp import Extrapolation
from fedjax_bal.parts.fedgrab import GradientBalancer
from fedjax_bal.parts.fedic import CalibratedDistillation
from fedjax_bal.parts.fedlc import LogitCalibration
from fedjax_bal.parts.fedlesam import GlobalAscent
from fedjax_bal.parts.fedlmd import LabelMaskingDistillation
from fedjax_bal.parts.fedloge import RealignedHeads
from fedjax_bal.parts.fednh import PrototypeClassifier
from fedjax_bal.parts.fednova import NormalisedAveraging
from fedjax_bal.parts.fedntd import NotTrueDistillation
from fedjax_bal.parts.fedproto import PrototypeDistance
from fedjax_bal.parts.fedprox import Proximal
from fedjax_bal.parts.fedrep import HeadThenBody
from fedjax_bal.parts.fedrod import ResidualHead
from fedjax_bal.parts.fedrs import RestrictedSoftmax
from fedjax_bal.parts.fedsam import Ascent
from fedjax_bal.parts.fedvls import LogitSuppression, VacantClassDistillation
from fedjax_bal.parts.flcir import CompositionProbe, ParticipatingShare
from fedjax_bal.parts.focal import FocalLoss
from fedjax_bal.parts.iwds import SCHEDULES, DecayedResampling
from fedjax_bal.parts.lade import Disentangling
from fedjax_bal.parts.ldam import LabelMargins
from fedjax_bal.parts.moon import ModelContrast
from fedjax_bal.parts.needs import check_needs, names_of_needs
from fedjax_bal.parts.part import Need, Part, RoundsSoFar, RunFacts, RunSetting, part, parts_with, static
from fedjax_bal.parts.personal import OwnHead, OwnModel, OwnNormalisation
from fedjax_bal.parts.private_mean import PrivateMean
from fedjax_bal.parts.ratio_loss import RatioLoss
from fedjax_bal.parts.rebafl import FeatureTransfer
from fedjax_bal.parts.robust import Median, NormClipping, TrimmedMean
from fedjax_bal.parts.roles import (
    Batches,
    Closing,
    Criterion,
    Deliver,
    Draw,
    Freeze,
    Gradient,
    Logits,
    Loss,
    Memory,
    Personal,
    Prepare,
    Probe,
    Reduce,
    Refine,
    Report,
    Separate,
    Server,
    Shift,
    Start,
    Step,
    Steps,
    Update,
    Weigh,
)
from fedjax_bal.parts.scaffold import ControlVariates, LateControlVariates

__all__ = [
    "BALANCED",
    "BATCH_STATISTICS",
    "SCHEDULES",
    "SCOPES",
    "SERVER_ROWS",
    "Ascent",
    "Augmentation",
    "Batches",
    "BeforeLookahead",
    "CalibratedDistillation",
    "ClassBalancedLoss",
    "ClientMomentum",
    "Closing",
    "CompositionProbe",
    "ControlVariates",
    "Criterion",
    "CropAndFlip",
    "Cutout",
    "DecayedResampling",
    "Decorrelation",
    "Deliver",
    "DiscrepancyWeights",
    "Disentangling",
    "Draw",
    "DualWeights",
    "DynamicRegularisation",
    "EqualWeights",
    "Extrapolation",
    "Fakes",
    "Faults",
    "FeatureMatching",
    "FeatureTransfer",
    "FocalLoss",
    "Freeze",
    "FreshStatistics",
    "FrozenHead",
    "GlobalAscent",
    "Gradient",
    "GradientBalancer",
    "HeadThenBody",
    "LabelMargins",
    "LabelMaskingDistillation",
    "LateControlVariates",
    "LocalGenerator",
    "LogitCalibration",
    "LogitSuppression",
    "Logits",
    "Loss",
    "Median",
    "Memory",
    "ModelContrast",
    "Need",
    "NoiseByClient",
    "NormClipping",
    "NormalisedAveraging",
    "NotTrueDistillation",
    "OwnHead",
    "OwnModel",
    "OwnNormalisation",
    "OwnStatistics",
    "Part",
    "ParticipatingShare",
    "Personal",
    "PredictionEntropy",
    "Prepare",
    "PriorCalibration",
    "PrivateMean",
    "Probe",
    "PrototypeClassifier",
    "PrototypeDistance",
    "Proximal",
    "RatioLoss",
    "RealignedHeads",
    "Reduce",
    "Refine",
    "RefinedHead",
    "Report",
    "ResidualHead",
    "RestrictedSoftmax",
    "RotationByClient",
    "RoundsSoFar",
    "RunFacts",
    "RunSetting",
    "Separate",
    "SeparateModel",
    "Server",
    "SharedDcgans",
    "SharedGenerator",
    "Shift",
    "SimplexClassifier",
    "StaleUpdates",
    "Start",
    "Step",
    "Steps",
    "TrimmedMean",
    "Update",
    "VacantClassDistillation",
    "VirtualRepresentations",
    "Weigh",
    "check_needs",
    "epsilon",
    "names_of_needs",
    "part",
    "parts_with",
    "static",
]
