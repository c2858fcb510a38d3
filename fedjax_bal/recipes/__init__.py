"""Named assemblies of parts: what a paper calls a method.

A recipe holds no mathematics. A hyperparameter out of range raises a `ValueError` that names it and says what is
allowed. `combine` puts several recipes together.
"""

from collections.abc import Callable

from fedjax_bal.recipes.averaging import (
    equal_weights,
    fedacg,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    feddisco,
    fedexp,
    fedprox,
    fedyogi,
)
from fedjax_bal.recipes.cbfl import cbfl
from fedjax_bal.recipes.citations import citation, cite, short_citation
from fedjax_bal.recipes.client_selection import astraea, flcir
from fedjax_bal.recipes.drift import fedcm, feddecorr, feddyn, fednova, fedproto, moon, scaffold
from fedjax_bal.recipes.flatness import fedlesam, fedsam, fedspeed, mofedsam
from fedjax_bal.recipes.heads import ccvr, creff, fedavg_ft, fedbabu, fedetf, fednh
from fedjax_bal.recipes.long_tail import (
    class_balanced,
    climb,
    fedgrab,
    fedic,
    focal,
    lade,
    ldam,
    logit_adjustment,
    ratio_loss,
)
from fedjax_bal.recipes.losses import balanced_softmax, balancefl, fedlc, fedlmd, fedntd, fedrs, fedvls, rebafl
from fedjax_bal.recipes.personal import ditto, fedbn, fedloge, fedper, fedrep, fedrod, local
from fedjax_bal.recipes.recipe import Recipe, combine, with_reading
from fedjax_bal.recipes.robust import dp, faults, median, norm_clipping, trimmed_mean
from fedjax_bal.recipes.sampling import crop_flip, cutout, feature_skew, iwds
from fedjax_bal.registry import Registry

__all__ = [
    "RECIPES",
    "Recipe",
    "astraea",
    "balanced_softmax",
    "balancefl",
    "cbfl",
    "ccvr",
    "citation",
    "cite",
    "class_balanced",
    "climb",
    "combine",
    "creff",
    "crop_flip",
    "cutout",
    "ditto",
    "dp",
    "equal_weights",
    "faults",
    "feature_skew",
    "fedacg",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavg_ft",
    "fedavgm",
    "fedbabu",
    "fedbn",
    "fedcm",
    "feddecorr",
    "feddisco",
    "feddyn",
    "fedetf",
    "fedexp",
    "fedgrab",
    "fedic",
    "fedlc",
    "fedlesam",
    "fedlmd",
    "fedloge",
    "fednh",
    "fednova",
    "fedntd",
    "fedper",
    "fedproto",
    "fedprox",
    "fedrep",
    "fedrod",
    "fedrs",
    "fedsam",
    "fedspeed",
    "fedvls",
    "fedyogi",
    "flcir",
    "focal",
    "iwds",
    "lade",
    "ldam",
    "local",
    "logit_adjustment",
    "median",
    "mofedsam",
    "moon",
    "norm_clipping",
    "ratio_loss",
    "rebafl",
    "scaffold",
    "short_citation",
    "trimmed_mean",
    "with_reading",
]

_NOT_RECIPES = ("RECIPES", "Recipe", "citation", "cite", "combine", "short_citation", "with_reading")
RECIPES: Registry[Callable[..., Recipe]] = Registry(
    {name: globals()[name] for name in __all__ if name not in _NOT_RECIPES}
)
"""All recipes by name."""
