"""Recipes: what they are made of, and what they refuse."""

import inspect
import re
from pathlib import Path

import pytest
import small_run
import toys

from fedjax_bal import recipes
from fedjax_bal.config import ConfigError, load_config
from fedjax_bal.config.schema import Sections
from fedjax_bal.engine.host import build
from fedjax_bal.methods import local
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.parts import Criterion, Logits, Shift, part
from fedjax_bal.recipes import RECIPES, Recipe


def test_rebafl_is_a_prior_and_a_transfer_with_one_epsilon():
    prior, transfer = recipes.rebafl(epsilon=0.2, mu=0.7).parts
    assert (prior.epsilon, transfer.epsilon, transfer.mu, transfer.scale) == (0.2, 0.2, 0.7, 1.0)


def test_combine_keeps_order_and_the_one_that_differs():
    adam = optimizer("adam", 0.01)
    both = recipes.combine(recipes.scaffold(), Recipe("server", server_optimizer=adam), recipes.fedprox(0.1))
    assert [part.slot for part in both.parts] == ["ControlVariates", "Proximal"]
    assert both.server_optimizer == adam
    assert both.name == "scaffold+server+fedprox"


def test_a_recipe_put_together_by_hand_is_refused_for_the_same_reasons():
    twice = Recipe("mine", (*recipes.median().parts, *recipes.trimmed_mean().parts))
    with pytest.raises(ValueError, match="Median and TrimmedMean both reduce the updates"):
        build(twice, toys.network(), toys.federation(), toys.test_set(), rounds=1)


@part
class Late(Logits):
    """Begins in the third round."""

    first_round = 2

    def logits(self, logits, batch, ctx):
        return 2 * logits


def test_a_run_that_is_over_before_a_part_begins_is_refused():
    late = Recipe("late", (Late(),))
    given = (toys.network(), toys.federation(), toys.test_set())
    with pytest.raises(ValueError, match="Late: begins in round 3, but rounds=2, .* or set rounds to 3 or more"):
        build(late, *given, rounds=2)
    build(late, *given, rounds=3)


@part
class First(Criterion):
    """A loss."""

    def losses(self, logits, labels, ctx):
        return -logits[:, 0]


@part
class Second(Criterion):
    """Another loss."""

    def losses(self, logits, labels, ctx):
        return logits[:, 0]


@part
class Here(Shift):
    """A place."""

    def shift(self, params, grads, ctx):
        return params


@part
class There(Shift):
    """Another place."""

    def shift(self, params, grads, ctx):
        return params


def test_combine_refuses_what_means_nothing():
    with pytest.raises(ValueError, match="Median and TrimmedMean both reduce the updates"):
        recipes.combine(recipes.median(), recipes.trimmed_mean())
    with pytest.raises(ValueError, match=r"balanced_softmax and rebafl both bring PriorCalibration"):
        recipes.combine(recipes.balanced_softmax(), recipes.rebafl())
    with pytest.raises(ValueError, match="set drawing differently"):
        recipes.combine(Recipe("a", drawing="epochs"), Recipe("b", drawing="replacement"))
    with pytest.raises(ValueError, match="no recipe"):
        recipes.combine()
    with pytest.raises(ValueError, match=r"received <function fedavg .*, must be what a recipe's function returns"):
        recipes.combine(recipes.fedavg, recipes.scaffold())  # type: ignore[arg-type]


def test_combine_refuses_two_parts_where_there_is_one():
    with pytest.raises(ValueError, match="First and Second both replace the cross-entropy; there is only one"):
        recipes.combine(Recipe("a", (First(),)), Recipe("b", (Second(),)))
    with pytest.raises(ValueError, match="Here and There both choose where a gradient is taken"):
        recipes.combine(Recipe("a", (Here(),)), Recipe("b", (There(),)))


def test_no_hyperparameter_is_called_like_a_section():
    taken = {"name", "recipe", *Sections.model_fields}
    for name, function in RECIPES.items():
        assert not taken & set(inspect.signature(function).parameters), name


BAD = [
    (recipes.fedprox, {"mu": -1}, "fedprox: mu: received -1"),
    (recipes.fedprox, {"mu": float("nan")}, "fedprox: mu: received nan"),
    (recipes.rebafl, {"epsilon": 1.5}, "rebafl: epsilon: received 1.5, must be a finite number from 0 to 1"),
    (recipes.rebafl, {"prototypes": "mine"}, "allowed: local_override, global_only"),
    (recipes.rebafl, {"min_classes": 0}, "min_classes: received 0"),
    (recipes.rebafl, {"carry": 1}, "carry: received 1"),
    (recipes.scaffold, {"scaffold_momentum": "yes"}, "scaffold_momentum: received 'yes'"),
    (recipes.class_balanced, {"beta": 1.5}, "class_balanced: beta: received 1.5"),
    (recipes.class_balanced, {"counts": "loca"}, "class_balanced: counts: received 'loca'.*did you mean 'local'"),
    (recipes.focal, {"gamma": -1}, "focal: gamma: received -1"),
    (recipes.logit_adjustment, {"tau": -1}, "logit_adjustment: tau: received -1"),
    (recipes.ldam, {"scale": 0}, "ldam: scale: received 0"),
    (recipes.lade, {"weight": -0.1}, "lade: weight: received -0.1"),
    (recipes.ratio_loss, {"beta": -0.1}, "ratio_loss: beta: received -0.1"),
    (recipes.fedproto, {"weight": -1}, "fedproto: weight: received -1"),
    (recipes.fednh, {"rho": 1.1}, "fednh: rho: received 1.1"),
    (recipes.fedetf, {"scale": 0}, "fedetf: scale: received 0"),
    (recipes.fedavgm, {"momentum": 1.0}, "fedavgm: momentum: received 1.0"),
    (recipes.fedavgm, {"learning_rate": -1.0}, "fedavgm: learning_rate: received -1.0"),
    (recipes.fedadam, {"beta_1": 1.0}, "fedadam: beta_1: received 1.0"),
    (recipes.fedyogi, {"beta_2": -0.1}, "fedyogi: beta_2: received -0.1"),
    (recipes.fedadagrad, {"tau": 0.0}, "fedadagrad: tau: received 0, must be above 0"),
    (recipes.trimmed_mean, {"share": 0.5}, "share: received 0.5, must be below 0.5"),
    (recipes.norm_clipping, {"bound": 0}, "bound: received 0, must be above 0"),
    (recipes.trimmed_mean, {"share": 0.7}, "share: received 0.7"),
    (recipes.fedrs, {"alpha": 1.5}, "fedrs: alpha: received 1.5, must be a finite number from 0 to 1"),
    (recipes.fedrs, {"mode": "sotf"}, "fedrs: mode: received 'sotf'.*did you mean 'soft'"),
    (recipes.fedlc, {"tau": -1}, "fedlc: tau: received -1"),
    (recipes.fedgrab, {"integral": -1}, "fedgrab: integral: received -1"),
    (recipes.feddisco, {"a": -1}, "feddisco: a: received -1"),
    (recipes.climb, {"interval": 0}, "climb: interval: received 0"),
    (recipes.balancefl, {"temperature": 0}, "balancefl: temperature: received 0"),
    (recipes.fedexp, {"epsilon": 0}, "fedexp: epsilon: received 0"),
    (recipes.fedacg, {"momentum": 1.0}, "fedacg: momentum: received 1.0"),
    (recipes.fedcm, {"alpha": 0}, "fedcm: alpha: received 0"),
    (recipes.fedsam, {"rho": -1}, "fedsam: rho: received -1"),
    (recipes.mofedsam, {"rho": -1}, "mofedsam: rho: received -1"),
    (recipes.fedlesam, {"rho": -1}, "fedlesam: rho: received -1"),
    (recipes.fedspeed, {"weight": -1}, "fedspeed: weight: received -1"),
    (recipes.fedbabu, {"fine_tune_epochs": -1}, "fedbabu: fine_tune_epochs: received -1"),
    (recipes.fedbabu, {"fine_tune_momentum": 1.0}, "fedbabu: fine_tune_momentum: received 1"),
    (recipes.fedavg_ft, {"epochs": 0}, "fedavg_ft: epochs: received 0"),
    (recipes.fedavg_ft, {"batch_size": 2.5}, "fedavg_ft: batch_size: received 2.5"),
    (recipes.fedavg_ft, {"learning_rate": float("nan")}, "fedavg_ft: learning_rate: received nan"),
    (recipes.fedvls, {"weight": -1}, "fedvls: weight: received -1"),
    (recipes.fedvls, {"suppression": -1}, "fedvls: suppression: received -1"),
    (recipes.fedntd, {"weight": -1}, "fedntd: weight: received -1"),
    (recipes.fedlmd, {"temperature": 0}, "fedlmd: temperature: received 0"),
    (recipes.crop_flip, {"pad": -1}, "crop_flip: pad: received -1"),
    (recipes.crop_flip, {"flip": 1}, "crop_flip: flip: received 1"),
    (recipes.fednova, {"mu": -1}, "fednova: mu: received -1"),
    (recipes.fednova, {"server_momentum": 1.0}, "fednova: server_momentum: received 1.0"),
    (
        recipes.cbfl,
        {"generator": "gan"},
        "cbfl: generator: received 'gan'; allowed: shared, per_client, gaussian, dcgan",
    ),
    (recipes.cbfl, {"dcgan_iterations": -1}, "cbfl: dcgan_iterations: received -1, must be an integer of at least 0"),
    (recipes.cbfl, {"dcgan_pool": 0}, "cbfl: dcgan_pool: received 0, must be an integer of at least 1"),
    (recipes.cbfl, {"dcgan_seed": 0.5}, "cbfl: dcgan_seed: received 0.5, must be an integer from 0 to 4294967295"),
    (
        recipes.cbfl,
        {"dcgan_seed": 2**32},
        "cbfl: dcgan_seed: received 4294967296, must be an integer from 0 to 4294967295",
    ),
    (recipes.cbfl, {"labels": "balance"}, "cbfl: labels: received 'balance'.*did you mean 'balanced'"),
    (recipes.cbfl, {"rarest": 2}, "cbfl: rarest: received 2 with labels='balanced'"),
    (recipes.cbfl, {"labels": "rarest"}, "cbfl: rarest: received None with labels='rarest'"),
    (recipes.cbfl, {"labels": "rarest", "rarest": 0}, "cbfl: rarest: received 0"),
    (
        recipes.cbfl,
        {"generator": "per_client", "interval": 2},
        "cbfl: received interval=2 and teacher='current' with generator",
    ),
    (
        recipes.cbfl,
        {"generator": "per_client", "teacher": "snapshot"},
        "teacher='snapshot' with generator='per_client'",
    ),
    (recipes.cbfl, {"distillation": -1}, "cbfl: distillation: received -1"),
    (recipes.cbfl, {"classification": -1}, "cbfl: classification: received -1"),
    (recipes.cbfl, {"generator": "gan"}, "cbfl: generator: received 'gan'"),
    (recipes.cbfl, {"teacher": "old"}, "cbfl: teacher: received 'old'"),
    (recipes.cbfl, {"learn": "nothing"}, "cbfl: learn: received 'nothing'"),
    (recipes.cbfl, {"direction": "both"}, "cbfl: direction: received 'both'"),
    (recipes.cbfl, {"layers": "max"}, "cbfl: layers: received 'max'"),
    (recipes.cbfl, {"warm_up": -1}, "cbfl: warm_up: received -1"),
    (recipes.cbfl, {"interval": 0}, "cbfl: interval: received 0"),
    (recipes.cbfl, {"iterations": 2.5}, "cbfl: iterations: received 2.5"),
    (recipes.cbfl, {"generator_batch": 0}, "cbfl: generator_batch: received 0"),
    (recipes.cbfl, {"generator_rate": -0.1}, "cbfl: generator_rate: received -0.1"),
    (recipes.cbfl, {"gamma": float("nan")}, "cbfl: gamma: received nan"),
    (recipes.cbfl, {"width": 1}, "cbfl: width: received 1"),
    (recipes.cbfl, {"latent": 0}, "cbfl: latent: received 0"),
    (recipes.cbfl, {"fakes": 0}, "cbfl: fakes: received 0"),
    (recipes.cbfl, {"weight": -1}, "cbfl: weight: received -1"),
    (recipes.cbfl, {"attention": None}, "cbfl: attention: received None"),
    (recipes.cbfl, {"temperature": 0}, "cbfl: temperature: received 0, must be above 0"),
]


@pytest.mark.parametrize(("recipe", "values", "message"), BAD, ids=[m for *_, m in BAD])
def test_a_wrong_hyperparameter_is_named(recipe, values, message):
    with pytest.raises(ValueError, match=message):
        recipe(**values)


READINGS = [(name, which) for name, own in RECIPES.items() for which in getattr(own, "variants", {})]


@pytest.mark.parametrize(("name", "which"), READINGS, ids=map("-".join, READINGS))
def test_a_variant_sets_what_it_says_and_what_is_given_comes_first(name, which):
    recipe, values = RECIPES[name], RECIPES[name].variants[which]
    assert recipe(variant=which) == recipe(**values)
    first = next(iter(inspect.signature(recipe).parameters))
    given = 0.5 if first in ("alpha", "epsilon") else 900 if first == "warm_up" else "greedy"
    assert recipe(given, variant=which) == recipe(**{**values, first: given})
    config = load_config(None, [f"methods=[{{recipe: {name}, variant: {which}}}]"], needs=False)
    assert config.for_method(0).recipe == recipe(**values)


def test_the_guide_has_the_variants_that_recipes_declare():
    text = Path(recipes.__file__).parent.joinpath("guide", "papers.md").read_text()
    (table,) = [block for block in text.split("\n\n") if block.startswith("| method | as in the paper")]
    rows = [line.split(" | ") for line in table.splitlines()]
    told = {row[0][2:].lower().replace("-", ""): row[1:] for row in rows}
    for name, which in READINGS:
        cell = told[name][("paper", "code").index(which)].partition(";")[0].partition(" (")[0]
        values = dict(pair.split(": ") for pair in re.findall("`(.*?)`", cell))
        assert values == {key: str(value) for key, value in RECIPES[name].variants[which].items()}


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match="rebafl: variant: received 'codes'; allowed: paper, code; did you mean"):
        recipes.rebafl(variant="codes")
    with pytest.raises(ConfigError, match=r"methods.0.variant: received 'codes'; allowed: paper, code; did you mean"):
        load_config(None, ["methods=[{recipe: rebafl, variant: codes}]"])
    with pytest.raises(ConfigError, match=r"methods.0.variant: unknown key; recipe fedprox takes: mu"):
        load_config(None, ["methods=[{recipe: fedprox, variant: code}]"])


@pytest.mark.slow
def test_centralised_training_is_a_method_of_a_configuration(tmp_path):
    documented = " ".join(inspect.getdoc(local).partition("    {")[2].split())
    config = load_config(None, ["methods=[{recipe: fedavg}, {" + documented + "]"])
    among, alone = (config.for_method(index) for index in range(2))
    assert (alone.partition.clients, alone.selection.clients_per_round, alone.availability.name) == (1, 1, "always")
    assert among.partition.clients > 1
    small = ["training.rounds=1", "model={name: mlp}", "seeds=[0]", "methods=[{recipe: fedavg}, {" + documented + "]"]
    small_run.run(tmp_path / "run", small_run.config(tmp_path, *small, "selection.clients_per_round=2"))
    clients = {line["method"]: line["clients"] for line in small_run.metrics(tmp_path / "run")}
    assert clients["centralised"] == 1 and set(clients) == {"fedavg", "centralised"}
