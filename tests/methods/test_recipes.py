"""Recipes: what they are made of, and what they refuse."""

import ast
import inspect
import itertools
import re
from pathlib import Path

import jax
import pytest
import small_run
import toys

from fedjax_bal import recipes
from fedjax_bal.annotations import parameters
from fedjax_bal.config import ConfigError, load_config
from fedjax_bal.config.schema import Sections
from fedjax_bal.engine.host import build_simulation
from fedjax_bal.optim.optimizers import optimizer
from fedjax_bal.parts import Criterion, Logits, Shift, part
from fedjax_bal.recipes import RECIPES, Recipe


def test_combine_keeps_order_and_the_one_that_differs():
    adam = optimizer("adam", 0.01)
    both = recipes.combine(recipes.scaffold(), Recipe("server", server_optimizer=adam), recipes.fedprox(0.1))
    assert [part.slot for part in both.parts] == ["ControlVariates", "Proximal"]
    assert both.server_optimizer == adam
    assert both.name == "scaffold+server+fedprox"


def test_a_recipe_put_together_by_hand_is_refused_for_the_same_reasons():
    twice = Recipe("mine", (*recipes.median().parts, *recipes.trimmed_mean().parts))
    with pytest.raises(ValueError, match="Median and TrimmedMean both reduce the updates"):
        build_simulation(twice, toys.network(), toys.federation(), toys.test_set(), rounds=1)


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
        build_simulation(late, *given, rounds=2)
    build_simulation(late, *given, rounds=3)


@part
class Here(Criterion, Shift):
    """A loss, and a place."""

    def losses(self, logits, labels, ctx):
        return -logits[:, 0]

    def shift(self, params, grads, ctx):
        return params


@part
class Loses(Criterion):
    """Another loss."""

    losses = Here.losses


@part
class There(Shift):
    """Another place."""

    shift = Here.shift


REFUSED = [
    ((recipes.median(), recipes.trimmed_mean()), "Median and TrimmedMean both reduce the updates"),
    ((recipes.balanced_softmax(), recipes.rebafl()), "balanced_softmax and rebafl both bring PriorCalibration"),
    ((Recipe("a", drawing="epochs"), Recipe("b", drawing="replacement")), "set drawing differently"),
    ((), "no recipe"),
    ((recipes.fedavg, recipes.scaffold()), "received <function fedavg"),
    ((Recipe("a", (Here(),)), Recipe("b", (Loses(),))), "Here and Loses both replace the cross-entropy; a run has"),
    ((Recipe("a", (Here(),)), Recipe("b", (There(),))), "Here and There both choose where a gradient is taken"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_combine_refuses_what_means_nothing(given, message):
    with pytest.raises(ValueError, match=message):
        recipes.combine(*given)


def test_parts_of_two_classes_are_two_structures():
    structures = [jax.tree.structure(own) for own in (Here(), Loses(), There(), recipes.fedprox().parts[0])]
    assert all(first != second for first, second in itertools.combinations(structures, 2))


def test_a_class_without_the_decorator_is_refused():
    class Bare(Logits):
        factor: float = 0.5
        logits = Late.logits

    with pytest.raises(ValueError, match="Bare: not declared as a part"):
        Bare(factor=0.1)


def test_no_hyperparameter_is_called_like_a_section():
    taken = {"name", "recipe", *Sections.model_fields}
    for name, function in RECIPES.items():
        assert not taken & set(inspect.signature(function).parameters), name


OUT_OF_RANGE = """
    balancefl: temperature=0; cbfl: distillation=-1 classification=-1 generator='gan' teacher='old' learn='nothing'
    direction='both' layers='max' warm_up=-1 interval=0 iterations=2.5 generator_batch=0 generator_rate=-0.1 gamma=nan
    width=1 latent=0 fakes=0 weight=-1 attention=None temperature=0; ccvr: per_class=0;
    class_balanced: beta=1.5; climb: interval=0; creff: per_class=0;
    crop_flip: pad=-1 flip=1; feature_skew: rotate=400 noise=-1; fedacg: momentum=1.0; fedadagrad: tau=0.0; fedadam:
    beta_1=1.0; fedavg_ft: epochs=0 batch_size=2.5 learning_rate=nan; fedavgm: momentum=1.0 learning_rate=-1.0;
    fedbabu: fine_tune_epochs=-1 fine_tune_momentum=1.0; fedcm: alpha=0; feddecorr: weight=-1; feddisco: a=-1; feddyn:
    alpha=-1 adaptive=1 clip=-2.0; fedetf: scale=0; fedexp: epsilon=0; fedgrab: integral=-1; fedic: share=1.5; fedlc:
    tau=-1; fedlesam: rho=-1; fedlmd: temperature=0; fedloge: sparsity=1.0; fednh: rho=1.1; fednova: mu=-1
    server_momentum=1.0; fedntd: weight=-1; fedproto: weight=-1; fedprox: mu=-1 mu=nan; fedrs: alpha=1.5; fedsam:
    rho=-1; fedspeed: weight=-1; fedvls: weight=-1 suppression=-1; fedyogi: beta_2=-0.1; focal: gamma=-1; iwds:
    beta_0=1.1 beta_m=-0.1 rho=2; lade: weight=-0.1; ldam: scale=0; logit_adjustment: tau=-1; mofedsam: rho=-1; moon:
    temperature=0.0 mu=-1 width=0; norm_clipping: bound=0; ratio_loss: beta=-0.1; rebafl: epsilon=1.5 min_classes=0
    carry=1; scaffold: scaffold_momentum='yes'; trimmed_mean: share=0.5 share=0.7;
    fedlesam_d: rho=-1 weight=-1 clip=-2.0; fedlesam_s: rho=-1; fedgamma: rho=-1; fedswa: rho=1.5 alpha=0;
    fedmoswa: gamma=-0.1; fedsmoo: rho=-1 weight=-1;
    fedlf: alpha=1.5 centres=-1; fedrela: start=-1 percent=-1 percent=101; fedyoyo: weight=-1 warm_up=0 gamma=1.5
    hole=-1; rucr: temperature=0.0 low=1.5 low=0.96 per_class=0;
    per_fedavg: learning_rate=-1 hessian='exact' difference=0 steps=0; fedpac: weight=-1 head_share=1.5 head_factor=0;
    fedas: learning_rate=-1 epochs=-1 fisher=1;
    apfl: alpha=1.5 shrinkage=-1 adapts='epoch'; fedrcl: temperature=0 weight=-1 threshold=nan threshold=1.5
    threshold=True; fedwsq: bits=3 momentum=1.5; krum: faulty=-1; multi_krum: kept=0; pfedme: attraction=0 steps=0;
    fedala: share=0 layers='body' most_passes=0; fedamp: sigma=0 own_weight=1.5 begin='mine'; fedfomo: models=0
    held_out=1.0 norm='l3';
    fedau: cutoff=0 weighting='known' by_size=1; fedawe: server_rate=0.0 clip=-1; fedvarp: by_rate=1; mifa: by_size=1;
    astraea: size=0 max_copies=-1; cutout: side=0; ditto: attraction=-1; dp: bound=0 noise=-1 delta=1.0;
    afl: ridge=-1; fed3r: ridge=-1; fedawa: steps=0 distance='manhattan' optimizer='lbfgs'; fedgloss: rho=-1 beta=0;
    fedgen: weight=-1 teacher='mean' steps=-1 latent=0; fedgf: rho=-1 global_rho=-1 window=0; fedmr: intra=-1 inter=nan;
    fedlaw: form='cube' batch_size=0; fedlws: beta=-1; fedmuon: alignment=1.0 beta=1.0; local_muon: scale=0;
    faults: factor=-1; fedbuff: exponent=-1 max_staleness=0; fedrep: head_share=1.5; flcir: alpha=-1 rho=1.5;
"""
"""By recipe, values that it refuses. Those of a newer method stand in its own test file."""

BAD = {
    "allowed: local_override, global_only": ("rebafl", {"prototypes": "mine"}),
    "class_balanced: counts: received 'loca'.*did you mean 'local'": ("class_balanced", {"counts": "loca"}),
    "fedrs: mode: received 'sotf'.*did you mean 'soft'": ("fedrs", {"mode": "sotf"}),
    "cbfl: generator: received 'gan'; .*allowed: shared, per_client, gaussian": ("cbfl", {"generator": "gan"}),
    "cbfl: labels: received 'balance'.*did you mean 'balanced'": ("cbfl", {"labels": "balance"}),
    "cbfl: rarest: received 2 with labels='balanced'": ("cbfl", {"rarest": 2}),
    "cbfl: rarest: received None with labels='rarest'": ("cbfl", {"labels": "rarest"}),
    "cbfl: rarest: received 0": ("cbfl", {"labels": "rarest", "rarest": 0}),
    "cbfl: received interval=2 and teacher='current' with": ("cbfl", {"generator": "per_client", "interval": 2}),
    "teacher='snapshot' with generator='per_c": ("cbfl", {"generator": "per_client", "teacher": "snapshot"}),
    "projection: received 'hed'; did you mean 'head'": ("moon", {"projection": "hed"}),
    "did you mean 'fixed'": ("iwds", {"schedule": "fix"}),
}


def refused_values():
    """Recipe, hyperparameter and value."""
    for entry in OUT_OF_RANGE.split(";")[:-1]:
        name, values = entry.split(":", 1)
        for key, value in re.findall(r"(\w+)=(\S+)", values):
            yield name.strip(), key, float("nan") if value == "nan" else ast.literal_eval(value)


@pytest.mark.parametrize(("name", "key", "value"), list(refused_values()))
def test_a_hyperparameter_out_of_range_is_named_with_its_value(name, key, value):
    shown = f"{value:g}" if isinstance(value, float) else repr(value)
    with pytest.raises(ValueError, match=f"{key}: received {shown}"):
        RECIPES[name](**{key: value})


@pytest.mark.parametrize("name", [name for name, function in RECIPES.items() if parameters(function)])
def test_every_hyperparameter_refuses_nan_and_an_unknown_text(name):
    for key, value in itertools.product(parameters(RECIPES[name]), (float("nan"), "nothing")):
        with pytest.raises(ValueError, match=f"{key}: received '?{value}"):
            RECIPES[name](**{key: value})


@pytest.mark.parametrize("message", BAD)
def test_a_wrong_hyperparameter_is_refused_with_the_remedy(message):
    name, values = BAD[message]
    with pytest.raises(ValueError, match=message):
        RECIPES[name](**values)


READINGS = [(name, which) for name, own in RECIPES.items() for which in getattr(own, "variants", {})]


@pytest.mark.parametrize(("name", "which"), READINGS, ids=map("-".join, READINGS))
def test_a_variant_sets_what_it_says_and_what_is_given_comes_first(name, which):
    recipe, values = RECIPES[name], RECIPES[name].variants[which]
    assert recipe(variant=which) == recipe(**values)
    first = next(iter(inspect.signature(recipe).parameters))
    given = 0.5 if first in ("alpha", "epsilon", "intra", "rho", "weight") else 900 if first == "warm_up" else "greedy"
    assert recipe(given, variant=which) == recipe(**{**values, first: given})
    config = load_config(None, [f"methods=[{{recipe: {name}, variant: {which}}}]"], needs=False)
    assert config.methods[0].recipe == recipe(**values)


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
    with pytest.raises(ValueError, match="rebafl: variant: received 'codes'"):
        recipes.rebafl(variant="codes")
    with pytest.raises(ConfigError, match="methods.0.variant: received 'codes'"):
        load_config(None, ["methods=[{recipe: rebafl, variant: codes}]"])
    with pytest.raises(ConfigError, match="methods.0.variant: unknown key"):
        load_config(None, ["methods=[{recipe: fedprox, variant: code}]"])


@pytest.mark.slow
def test_centralised_training_is_a_method_of_a_configuration(tmp_path):
    documented = " ".join(inspect.getdoc(inspect.getmodule(recipes.local)).partition("    {")[2].split())
    config = load_config(None, ["methods=[{recipe: fedavg}, {" + documented + "]"])
    among, alone = config.methods
    assert (alone.partition.clients, alone.selection.clients_per_round, alone.availability.name) == (1, 1, "always")
    assert among.partition.clients > 1
    small = ["training.rounds=1", "model={name: mlp}", "seeds=[0]", "methods=[{recipe: fedavg}, {" + documented + "]"]
    small_run.run(tmp_path / "run", small_run.config(tmp_path, *small, "selection.clients_per_round=2"))
    clients = {line["method"]: line["clients"] for line in small_run.metrics(tmp_path / "run")}
    assert clients["centralised"] == 1 and set(clients) == {"fedavg", "centralised"}
