"""The units of behaviour of clients and server, which recipes combine.

A part plays one or more roles, which decide when it runs, what it sees and how several parts combine; the guide,
`fedjax_bal/guide/roles.md`, has a table of all roles. On clients the context is a `Context`, on the server a
`ServerContext`.
"""

from fedjax_bal.methods.afl import LeastSquares
from fedjax_bal.methods.apfl import MixedModel
from fedjax_bal.methods.astraea import Augmentation
from fedjax_bal.methods.auto_augment import AutoAugment
from fedjax_bal.methods.balanced_softmax import PriorCalibration
from fedjax_bal.methods.balancefl import PredictionEntropy
from fedjax_bal.methods.batch_statistics import BATCH_STATISTICS, FreshStatistics, OwnStatistics
from fedjax_bal.methods.cbfl import Fakes, LocalGenerator, SharedGenerator
from fedjax_bal.methods.ccvr import VirtualRepresentations
from fedjax_bal.methods.class_balanced import ClassBalancedLoss
from fedjax_bal.methods.climb import DualWeights
from fedjax_bal.methods.creff import FeatureMatching
from fedjax_bal.methods.crop_flip import CropAndFlip, Cutout
from fedjax_bal.methods.ditto import SeparateModel
from fedjax_bal.methods.dp import PrivateMean, epsilon
from fedjax_bal.methods.equal_weights import EqualWeights
from fedjax_bal.methods.faults import Faults, StaleUpdates
from fedjax_bal.methods.feature_normalisation import NormalisedFeatures
from fedjax_bal.methods.feature_skew import NoiseByClient, RotationByClient
from fedjax_bal.methods.fedacg import BeforeLookahead
from fedjax_bal.methods.fedala import AdaptiveAggregation
from fedjax_bal.methods.fedamp import MessagePassing
from fedjax_bal.methods.fedas import AlignedBody, FisherWeights
from fedjax_bal.methods.fedau import IntervalWeights, ProbabilityWeights
from fedjax_bal.methods.fedavg_ft import RefinedHead
from fedjax_bal.methods.fedawa import AlignedWeights
from fedjax_bal.methods.fedawe import ClippedInnovation, EchoedInnovation
from fedjax_bal.methods.fedbabu import FrozenHead
from fedjax_bal.methods.fedbn import OwnNormalisation
from fedjax_bal.methods.fedbuff import StalenessWeights
from fedjax_bal.methods.fedcm import ClientMomentum
from fedjax_bal.methods.feddecorr import Decorrelation
from fedjax_bal.methods.feddisco import DiscrepancyWeights
from fedjax_bal.methods.feddyn import DynamicRegularisation
from fedjax_bal.methods.fedetf import SimplexClassifier
from fedjax_bal.methods.fedexp import Extrapolation
from fedjax_bal.methods.fedfomo import FirstOrderCombination
from fedjax_bal.methods.fedgen import FeatureGenerator
from fedjax_bal.methods.fedgf import InterpolatedAscent
from fedjax_bal.methods.fedgloss import ServerAscent
from fedjax_bal.methods.fedgrab import GradientBalancer
from fedjax_bal.methods.fedic import CalibratedDistillation
from fedjax_bal.methods.fedlaw import LearnedMixture
from fedjax_bal.methods.fedlc import LogitCalibration
from fedjax_bal.methods.fedlesam import GlobalAscent
from fedjax_bal.methods.fedlf import ClassCentres
from fedjax_bal.methods.fedlmd import LabelMaskingDistillation
from fedjax_bal.methods.fedloge import RealignedHeads
from fedjax_bal.methods.fedlws import LayerShrinking
from fedjax_bal.methods.fedmr import ClassDecorrelation, PrototypeMargin
from fedjax_bal.methods.fedmuon import LocalMuon, SharedMuon
from fedjax_bal.methods.fedncm import NearestMean
from fedjax_bal.methods.fednh import PrototypeClassifier
from fedjax_bal.methods.fednova import NormalisedAveraging
from fedjax_bal.methods.fedntd import NotTrueDistillation
from fedjax_bal.methods.fedpac import MixedHeads
from fedjax_bal.methods.fedper import OwnHead
from fedjax_bal.methods.fedproto import PrototypeDistance
from fedjax_bal.methods.fedprox import Proximal
from fedjax_bal.methods.fedrcl import RelaxedContrast
from fedjax_bal.methods.fedrela import LowerRate, Relabelling
from fedjax_bal.methods.fedrep import HeadThenBody
from fedjax_bal.methods.fedrod import ResidualHead
from fedjax_bal.methods.fedrs import RestrictedSoftmax
from fedjax_bal.methods.fedsam import Ascent
from fedjax_bal.methods.fedsmoo import ConsistentAscent
from fedjax_bal.methods.fedswa import CyclicRate, MovingControlVariates
from fedjax_bal.methods.fedvarp import SurrogateUpdates
from fedjax_bal.methods.fedvls import LogitSuppression, VacantClassDistillation
from fedjax_bal.methods.fedwsq import QuantisedUpdates
from fedjax_bal.methods.fedyoyo import MixedPrior, TwoViews
from fedjax_bal.methods.flcir import CompositionProbe, ParticipatingShare
from fedjax_bal.methods.focal import FocalLoss
from fedjax_bal.methods.iwds import DecayedResampling
from fedjax_bal.methods.lade import Disentangling
from fedjax_bal.methods.ldam import LabelMargins
from fedjax_bal.methods.lg_fedavg import OwnBody
from fedjax_bal.methods.local import OwnModel
from fedjax_bal.methods.mifa import MemorisedUpdates
from fedjax_bal.methods.moon import ModelContrast
from fedjax_bal.methods.needs import BALANCED, SERVER_ROWS, check_needs, names_of_needs
from fedjax_bal.methods.per_fedavg import StepAhead
from fedjax_bal.methods.pfedme import MoreauEnvelope
from fedjax_bal.methods.ratio_loss import RatioLoss
from fedjax_bal.methods.rebafl import FeatureTransfer
from fedjax_bal.methods.robust import Krum, Median, NormClipping, TrimmedMean
from fedjax_bal.methods.roles import (
    Adapt,
    Batches,
    CheckContext,
    Closing,
    Criterion,
    Deliver,
    Draw,
    Freeze,
    Gradient,
    Logits,
    Loss,
    Memory,
    Need,
    NeedsContext,
    Part,
    Personal,
    Prepare,
    Probe,
    Reduce,
    Refine,
    Report,
    RoundsSoFar,
    Separate,
    Server,
    Shift,
    Start,
    Step,
    Steps,
    Update,
    Weigh,
    changes_for_evaluation,
    keeps_model,
    part,
    parts_with,
    static,
)
from fedjax_bal.methods.rucr import UnifiedPrototypes
from fedjax_bal.methods.scaffold import ControlVariates

__all__ = [
    "BALANCED",
    "BATCH_STATISTICS",
    "SERVER_ROWS",
    "Adapt",
    "AdaptiveAggregation",
    "AlignedBody",
    "AlignedWeights",
    "Ascent",
    "Augmentation",
    "AutoAugment",
    "Batches",
    "BeforeLookahead",
    "CalibratedDistillation",
    "CheckContext",
    "ClassBalancedLoss",
    "ClassCentres",
    "ClassDecorrelation",
    "ClientMomentum",
    "ClippedInnovation",
    "Closing",
    "CompositionProbe",
    "ConsistentAscent",
    "ControlVariates",
    "Criterion",
    "CropAndFlip",
    "Cutout",
    "CyclicRate",
    "DecayedResampling",
    "Decorrelation",
    "Deliver",
    "DiscrepancyWeights",
    "Disentangling",
    "Draw",
    "DualWeights",
    "DynamicRegularisation",
    "EchoedInnovation",
    "EqualWeights",
    "Extrapolation",
    "Fakes",
    "Faults",
    "FeatureGenerator",
    "FeatureMatching",
    "FeatureTransfer",
    "FirstOrderCombination",
    "FisherWeights",
    "FocalLoss",
    "Freeze",
    "FreshStatistics",
    "FrozenHead",
    "GlobalAscent",
    "Gradient",
    "GradientBalancer",
    "HeadThenBody",
    "InterpolatedAscent",
    "IntervalWeights",
    "Krum",
    "LabelMargins",
    "LabelMaskingDistillation",
    "LayerShrinking",
    "LearnedMixture",
    "LeastSquares",
    "LocalGenerator",
    "LocalMuon",
    "LogitCalibration",
    "LogitSuppression",
    "Logits",
    "Loss",
    "LowerRate",
    "Median",
    "MemorisedUpdates",
    "Memory",
    "MessagePassing",
    "MixedHeads",
    "MixedModel",
    "MixedPrior",
    "ModelContrast",
    "MoreauEnvelope",
    "MovingControlVariates",
    "NearestMean",
    "Need",
    "NeedsContext",
    "NoiseByClient",
    "NormClipping",
    "NormalisedAveraging",
    "NormalisedFeatures",
    "NotTrueDistillation",
    "OwnBody",
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
    "ProbabilityWeights",
    "Probe",
    "PrototypeClassifier",
    "PrototypeDistance",
    "PrototypeMargin",
    "Proximal",
    "QuantisedUpdates",
    "RatioLoss",
    "RealignedHeads",
    "Reduce",
    "Refine",
    "RefinedHead",
    "Relabelling",
    "RelaxedContrast",
    "Report",
    "ResidualHead",
    "RestrictedSoftmax",
    "RotationByClient",
    "RoundsSoFar",
    "Separate",
    "SeparateModel",
    "Server",
    "ServerAscent",
    "SharedGenerator",
    "SharedMuon",
    "Shift",
    "SimplexClassifier",
    "StaleUpdates",
    "StalenessWeights",
    "Start",
    "Step",
    "StepAhead",
    "Steps",
    "SurrogateUpdates",
    "TrimmedMean",
    "TwoViews",
    "UnifiedPrototypes",
    "Update",
    "VacantClassDistillation",
    "VirtualRepresentations",
    "Weigh",
    "changes_for_evaluation",
    "check_needs",
    "epsilon",
    "keeps_model",
    "names_of_needs",
    "part",
    "parts_with",
    "static",
]  # fmt: skip
