"""Recipes: named assemblies of parts, which papers call methods.

A recipe holds no mathematics. A hyperparameter out of range raises a `ValueError` that names it and says what is
allowed. `combine` puts several recipes together.
"""

from fedjax_bal.methods import RECIPES
from fedjax_bal.methods.afl import afl, fed3r
from fedjax_bal.methods.apfl import apfl
from fedjax_bal.methods.astraea import astraea
from fedjax_bal.methods.auto_augment import auto_augment
from fedjax_bal.methods.balanced_softmax import balanced_softmax, logit_adjustment
from fedjax_bal.methods.balancefl import balancefl
from fedjax_bal.methods.cbfl import cbfl
from fedjax_bal.methods.ccvr import ccvr
from fedjax_bal.methods.citations import citation, cite, short_citation
from fedjax_bal.methods.class_balanced import class_balanced
from fedjax_bal.methods.climb import climb
from fedjax_bal.methods.combine import Recipe, combine, family_of, with_variant
from fedjax_bal.methods.creff import creff
from fedjax_bal.methods.crop_flip import crop_flip, cutout
from fedjax_bal.methods.ditto import ditto
from fedjax_bal.methods.dp import dp
from fedjax_bal.methods.equal_weights import equal_weights
from fedjax_bal.methods.faults import faults
from fedjax_bal.methods.feature_normalisation import feature_normalisation
from fedjax_bal.methods.feature_skew import feature_skew
from fedjax_bal.methods.fedacg import fedacg
from fedjax_bal.methods.fedala import fedala
from fedjax_bal.methods.fedamp import fedamp
from fedjax_bal.methods.fedas import fedas
from fedjax_bal.methods.fedau import fedau
from fedjax_bal.methods.fedavg import fedavg
from fedjax_bal.methods.fedavg_ft import fedavg_ft
from fedjax_bal.methods.fedawa import fedawa
from fedjax_bal.methods.fedawe import fedawe
from fedjax_bal.methods.fedbabu import fedbabu
from fedjax_bal.methods.fedbn import fedbn
from fedjax_bal.methods.fedbuff import fedbuff
from fedjax_bal.methods.fedcm import fedcm
from fedjax_bal.methods.feddecorr import feddecorr
from fedjax_bal.methods.feddisco import feddisco
from fedjax_bal.methods.feddyn import feddyn
from fedjax_bal.methods.fedetf import fedetf
from fedjax_bal.methods.fedexp import fedexp
from fedjax_bal.methods.fedfomo import fedfomo
from fedjax_bal.methods.fedgamma import fedgamma
from fedjax_bal.methods.fedgen import fedgen
from fedjax_bal.methods.fedgf import fedgf
from fedjax_bal.methods.fedgloss import fedgloss
from fedjax_bal.methods.fedgrab import fedgrab
from fedjax_bal.methods.fedic import fedic
from fedjax_bal.methods.fedlaw import fedlaw
from fedjax_bal.methods.fedlc import fedlc
from fedjax_bal.methods.fedlesam import fedlesam, fedlesam_d, fedlesam_s
from fedjax_bal.methods.fedlf import fedlf
from fedjax_bal.methods.fedlmd import fedlmd
from fedjax_bal.methods.fedloge import fedloge
from fedjax_bal.methods.fedlws import fedlws
from fedjax_bal.methods.fedmr import fedmr
from fedjax_bal.methods.fedmuon import fedmuon, local_muon
from fedjax_bal.methods.fedncm import fedncm
from fedjax_bal.methods.fednh import fednh
from fedjax_bal.methods.fednova import fednova
from fedjax_bal.methods.fedntd import fedntd
from fedjax_bal.methods.fedopt import fedadagrad, fedadam, fedavgm, fedyogi
from fedjax_bal.methods.fedpac import fedpac
from fedjax_bal.methods.fedper import fedper
from fedjax_bal.methods.fedproto import fedproto
from fedjax_bal.methods.fedprox import fedprox
from fedjax_bal.methods.fedrcl import fedrcl
from fedjax_bal.methods.fedrela import fedrela
from fedjax_bal.methods.fedrep import fedrep
from fedjax_bal.methods.fedrod import fedrod
from fedjax_bal.methods.fedrs import fedrs
from fedjax_bal.methods.fedsam import fedsam, mofedsam
from fedjax_bal.methods.fedsmoo import fedsmoo
from fedjax_bal.methods.fedspeed import fedspeed
from fedjax_bal.methods.fedswa import fedmoswa, fedswa
from fedjax_bal.methods.fedvarp import fedvarp
from fedjax_bal.methods.fedvls import fedvls
from fedjax_bal.methods.fedwsq import fedwsq
from fedjax_bal.methods.fedyoyo import fedyoyo
from fedjax_bal.methods.flcir import flcir
from fedjax_bal.methods.focal import focal
from fedjax_bal.methods.iwds import iwds
from fedjax_bal.methods.lade import lade
from fedjax_bal.methods.ldam import ldam
from fedjax_bal.methods.lg_fedavg import lg_fedavg
from fedjax_bal.methods.local import local
from fedjax_bal.methods.mifa import mifa
from fedjax_bal.methods.moon import moon
from fedjax_bal.methods.per_fedavg import per_fedavg
from fedjax_bal.methods.pfedme import pfedme
from fedjax_bal.methods.ratio_loss import ratio_loss
from fedjax_bal.methods.rebafl import rebafl
from fedjax_bal.methods.robust import krum, median, multi_krum, norm_clipping, trimmed_mean
from fedjax_bal.methods.rucr import rucr
from fedjax_bal.methods.scaffold import scaffold

__all__ = [
    "RECIPES", "Recipe", "afl", "apfl", "astraea", "auto_augment", "balanced_softmax", "balancefl", "cbfl", "ccvr",
    "citation", "cite", "class_balanced", "climb", "combine", "creff", "crop_flip", "cutout", "ditto", "dp",
    "equal_weights", "family_of", "faults", "feature_normalisation", "feature_skew", "fed3r", "fedacg", "fedadagrad",
    "fedadam", "fedala", "fedamp", "fedas", "fedau", "fedavg", "fedavg_ft", "fedavgm", "fedawa", "fedawe", "fedbabu",
    "fedbn", "fedbuff", "fedcm", "feddecorr", "feddisco", "feddyn", "fedetf", "fedexp", "fedfomo", "fedgamma", "fedgen",
    "fedgf", "fedgloss", "fedgrab", "fedic", "fedlaw", "fedlc", "fedlesam", "fedlesam_d", "fedlesam_s", "fedlf",
    "fedlmd", "fedloge", "fedlws", "fedmoswa", "fedmr", "fedmuon", "fedncm", "fednh", "fednova", "fedntd", "fedpac",
    "fedper", "fedproto", "fedprox", "fedrcl", "fedrela", "fedrep", "fedrod", "fedrs", "fedsam", "fedsmoo", "fedspeed",
    "fedswa", "fedvarp", "fedvls", "fedwsq", "fedyogi", "fedyoyo", "flcir", "focal", "iwds", "krum", "lade", "ldam",
    "lg_fedavg", "local", "local_muon", "logit_adjustment", "median", "mifa", "mofedsam", "moon", "multi_krum",
    "norm_clipping", "per_fedavg", "pfedme", "ratio_loss", "rebafl", "rucr", "scaffold", "short_citation",
    "trimmed_mean", "with_variant",
]  # fmt: skip
