"""The recipes that must hold whatever way they are run."""

from typing import Any

import jax
import jax.numpy as jnp
import toys
from methods import faking

from fedjax_bal import models, recipes
from fedjax_bal.parts import Draw, Logits, Loss, Prepare, Refine, Report, Step, Update, Weigh, part
from fedjax_bal.recipes import Recipe


@part
class Eager(Draw, Weigh, Step, Prepare, Report, Logits, Loss, Update, Refine):
    """Plays the roles that no recipe plays yet, so that the table covers every role."""

    amount: float = 0.3

    def log_weights(self, class_counts, ctx):
        """Prefers rare classes, less so later."""
        return -self.amount * jnp.log(jnp.maximum(class_counts, 1.0)) / (1.0 + ctx.round)

    def weigh(self, weights, cohort, server):
        """Rewards chains with many steps."""
        return weights * (1 + self.amount * cohort.steps)

    def step(self, delta, server):
        """Damps by the participating share."""
        held = server.cohort.sizes.sum()
        return jax.tree.map(lambda leaf: leaf * held / server.cohort.total_size, delta), server.state

    def prepare(self, key, variables, ctx):
        """A random offset for this visit."""
        return 0.1 * jax.random.normal(key, ctx.class_counts.shape)

    def report(self, outcome):
        """The number of steps."""
        return outcome.steps.astype(jnp.float32)

    def logits(self, logits, batch, ctx):
        """Shifts by the offset."""
        return logits + ctx.prepared[self.slot]

    def loss(self, outputs, batch, params, ctx):
        """Shrinks features."""
        return self.amount * ((outputs.features**2).mean(-1) * batch.real).sum()

    def updates(self, updates, params, ctx):
        """Shrinks what the optimizer says."""
        return jax.tree.map(lambda leaf: (1 - 0.1 * self.amount) * leaf, updates)

    def refine(self, key, variables, server):
        """Shrinks the new model."""
        return jax.tree.map(lambda leaf: (1 - 0.01 * self.amount) * leaf, variables)


@part
class Masked(Refine):
    """Shows another model than goes on."""

    evaluation_only = True

    def refine(self, key, variables, server):
        """Adds noise."""
        return jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(key, leaf.shape), variables)


RECIPES = {
    "fedavg": recipes.fedavg(),
    "scaffold": recipes.scaffold(),
    "rebafl": recipes.rebafl(mu=0.5),
    "trimmed_mean": recipes.trimmed_mean(0.2),
    "everything": recipes.combine(
        recipes.scaffold(), recipes.rebafl(mu=0.5), recipes.fedprox(0.1), Recipe("eager", (Eager(), Masked()))
    ),
}


SMALLEST = {"fakes": 2, "attention": 1.0, "iterations": 2, "generator_batch": 3, "width": 2, "latent": 2}
"""Of CBFL's generators and fakes."""

ACTIVE: dict[str, dict[str, Any]] = {
    **{name: {} for name in recipes.RECIPES},
    "astraea": {"size": 2},
    "balancefl": {"smoothing": 0.1},
    "ccvr": {"per_class": 5, "batch_size": 4},
    "cbfl": {"warm_up": 1, "interval": 2, "teacher": "snapshot", **SMALLEST},
    "class_balanced": {"beta": 0.9},
    "climb": {"rate": 5.0, "tolerance": 0.0, "interval": 1},
    "creff": {"per_class": 3, "match_steps": 2, "epochs": 2, "batch_size": 4},
    "crop_flip": {"pad": 1},
    "cutout": {"side": 2},
    "dp": {"bound": 0.5, "noise": 0.1},
    "feature_skew": {"noise": 0.2, "rotate": 30.0},
    "faults": {"clients": [2, 4]},
    "fedacg": {"mu": 0.1},
    "fedas": {"learning_rate": 0.1},
    "fedavg_ft": {"epochs": 2, "batch_size": 5},
    "fedbabu": {"fine_tune_epochs": 1, "fine_tune_batch_size": 5},
    "fedcm": {"alpha": 0.5},
    "fedala": {"learning_rate": 20.0, "most_passes": 3},
    "fedamp": {"alpha": 2.0},
    "fedawa": {"learning_rate": 0.5, "steps": 2},
    "feddyn": {"alpha": 0.1},
    "fedetf": {"scale": 2.0},
    "fedfomo": {"models": 3},
    "fedgen": {"steps": 3, "batch_size": 5, "features": 4, "width": 8, "latent": 3, "learning_rate": 0.05},
    "fedgrab": {"integral": 0.5, "derivative": 1.0},
    "fedic": {"learning_rate": 0.05, "steps": 3, "batch_size": 5, "distillation_batch": 7},
    "fedlaw": {"learning_rate": 0.1, "epochs": 2, "batch_size": 5},
    "fedgf": {"threshold": 0.05, "window": 2},
    "fedlf": {"centres": 2.0, "warm_up": 0},
    "fedloge": {"sparsity": 0.3, "steps": 5},
    "fednh": {"rho": 0.5},
    "fedprox": {"mu": 0.1},
    "fedrela": {"start": 1, "percent": 30.0},
    "fedrcl": {"temperature": 0.5, "threshold": 0.2},
    "fedwsq": {"everything": True},
    "fedvls": {"weight": 0.5, "suppression": 0.1},
    "fedyoyo": {"pad": 1, "hole": 2, "warm_up": 2},
    "ldam": {"scale": 8.0, "reweight_from": 1, "beta": 0.9},
    "logit_adjustment": {"tau": 1.5, "counts": "global", "epsilon": 0.1},
    "mofedsam": {"alpha": 0.5},
    "norm_clipping": {"bound": 0.5, "adaptive": True},
    "per_fedavg": {"learning_rate": 0.2, "hessian": "difference", "difference": 0.1},
    "pfedme": {"attraction": 2.0},
    "rebafl": {"mu": 0.5},
    "rucr": {"per_class": 3, "epochs": 2, "batch_size": 4, "learning_rate": 0.1},
    "trimmed_mean": {"share": 0.2},
}
"""Hyperparameters with which every part of each recipe acts within three rounds on a tiny federation, if its defaults
don't do."""


def small(name: str) -> tuple[Recipe, dict[str, Any]]:
    """A recipe and the options that the battery needs for it; generators are to be replaced by `faking.simplest`."""
    return recipes.RECIPES[name](**ACTIVE[name]), SPECIAL[name]() if name in SPECIAL else {}


def larger_images() -> dict[str, Any]:
    """A generator has no images of 1x4 pixels."""
    return {"model": faking.network(), "federation": faking.federation(), "test": faking.test_set()}


def normalised_layers() -> dict[str, Any]:
    """Layers that are called normalisation."""
    return larger_images() | {"model": models.build("tiny_bn", toys.CLASSES, (4, 4, 1))}


def ill_conditioned() -> dict[str, Any]:
    """Ratios or correlations whose terms nearly cancel, so that they enlarge rounding."""
    return {"tolerance": 2e-3}


def whole_steps() -> dict[str, Any]:
    """Adam and Muon make whole steps of the smallest gradients or singular values, and so of rounding."""
    return {"tolerance": 1e-4}


def without_statistics() -> dict[str, Any]:
    """A network without batch statistics."""
    return {"model": toys.network(), "federation": toys.federation(), "test": toys.test_set()}


SPECIAL = {
    "apfl": without_statistics,
    "cbfl": larger_images,
    "ditto": without_statistics,
    "dp": without_statistics,
    "fedamp": without_statistics,
    "fedbn": normalised_layers,
    "feddecorr": ill_conditioned,
    "fedfomo": without_statistics,
    "fedgen": whole_steps,
    "fedic": whole_steps,
    "fedmr": ill_conditioned,
    "fedmuon": whole_steps,
    "local_muon": whole_steps,
    "pfedme": without_statistics,
    "ratio_loss": ill_conditioned,
}
"""Recipes that the battery's own network or tolerance doesn't suit."""


def finish(sim, seed=0):
    """Runs a simulation to its end."""
    snapshot, records = sim.init(seed), []
    while snapshot.round < sim.rounds:
        advance = sim.advance(seed, snapshot)
        snapshot, records = advance.snapshot, records + advance.records
    return snapshot.state, records
