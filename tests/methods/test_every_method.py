"""Every recipe has a test file, named after it or shared with others: injected faults in tests/engine."""

import dataclasses
import sys
from pathlib import Path

import pytest

from fedjax_bal import parts, recipes
from fedjax_bal.parts import Part
from fedjax_bal.recipes import RECIPES

SHARED_FILES = {
    "cutout": "crop_flip", "fedbabu": "fedavg_ft", "fedprox": "fedavg", "balanced_softmax": "fedavg",
    **dict.fromkeys(("class_balanced", "focal", "lade", "ldam", "logit_adjustment"), "long_tail_losses"),
    **dict.fromkeys(("fedlmd", "fedntd", "fedvls"), "masked_distillation"),
    **dict.fromkeys(("ditto", "fedbn", "fedper", "fedrep", "lg_fedavg", "local"), "personal"),
    **dict.fromkeys(("krum", "median", "multi_krum", "norm_clipping", "trimmed_mean"), "robust"),
    **dict.fromkeys(("fedadagrad", "fedadam", "fedavgm", "fedyogi"), "server_optimizers"),
    **dict.fromkeys(("fedlesam", "fedspeed"), "fedsam"), "mofedsam": "fedcm", "fedvarp": "mifa",
    **dict.fromkeys(("fedlesam_d", "fedlesam_s"), "fedlesam_variants"), "fedmoswa": "fedswa",
    "fed3r": "afl", "local_muon": "fedmuon",
}  # fmt: skip
"""Methods that share a test file, whose transcriptions differ in a line or two."""


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_test_file(name):
    file = f"test_{SHARED_FILES.get(name, name)}.py"
    assert list(Path(__file__).parents[1].rglob(file)), f"{name} needs a file {file}, or an entry in SHARED_FILES"


def test_recipes_and_parts_export_every_method():
    modules = [module for name, module in sys.modules.items() if name.startswith("fedjax_bal.methods.")]
    types = [thing for module in modules for thing in vars(module).values() if isinstance(thing, type)]
    names = {kind.__name__ for kind in types if issubclass(kind, Part) and dataclasses.is_dataclass(kind)}
    assert {name for name in names if name[0] != "_"} <= set(parts.__all__)
    assert set(RECIPES) <= set(recipes.__all__)
