"""The analysis `privacy` of a run: images near generated ones, attacks on prototypes, and what a report shows."""

import html
import json
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import registered
import small_run
from rounding import FORMULA, SUM

from fedjax_bal import report
from fedjax_bal.config import load_config
from fedjax_bal.contrib.privacy import PrivacyAttacks, Regression
from fedjax_bal.contrib.privacy import attacks as module
from fedjax_bal.lab.setup import set_up
from fedjax_bal.plugins import load_plugins

pytestmark = pytest.mark.slow

PLUGIN = "fedjax_bal.contrib.privacy"
METHODS = """methods=[{recipe: rebafl}, {recipe: [{name: cbfl, warm_up: 1, fakes: 6, width: 2, latent: 2,
generator_batch: 4, iterations: 2}], name: fakes}]"""
CHANGES = (
    METHODS, "model.name=tiny_bn", "training.rounds=2", "evaluation.every=1",
    "evaluation.analyses={privacy: {steps: 2}}", "seeds=[3, 1]",
)  # fmt: skip


@pytest.fixture(autouse=True)
def plugin():
    """The plug-in, as `--plugin` loads it."""
    load_plugins([PLUGIN])


class Attacks:
    """Stands in for attacks, which take long to compile and have tests of their own; notes what they are given.

    A decoder turns features into images of mean brightness, a search into the brightest.
    """

    def __init__(self):
        self.fitted, self.searched = [], []

    def fit_decoder(self, key, model, variables, images, *, kind, iterations):
        self.fitted.append((kind, iterations, np.asarray(images)))

    def decode(self, fitted, features):
        return np.zeros((len(features), 28, 28, 1), np.float32)

    def regress(self, key, model, variables, target, *, of="features", iterations, limits):
        count = len(jax.tree.leaves(target)[0])
        self.searched.append((of, iterations, count))
        return Regression(np.broadcast_to(np.asarray(limits[1]), (count, 28, 28, 1)), None, None)


@pytest.fixture(scope="module")
def attacks():
    with pytest.MonkeyPatch.context() as patch:
        stand_in = Attacks()
        for name in ("fit_decoder", "decode", "regress"):
            patch.setattr(module, name, getattr(stand_in, name))
        yield stand_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory, attacks):
    """A finished run of a method that shares prototypes and one that makes fakes."""
    load_plugins([PLUGIN])
    place = tmp_path_factory.mktemp("privacy")
    small_run.run(place / "run", small_run.config(place, *CHANGES))
    return place / "run"


@pytest.fixture(scope="module")
def comparison(folder):
    """What it trained on, set up again."""
    load_plugins([PLUGIN])
    return set_up(load_config(folder / "config.yaml"))


def arrays(folder, method):
    with np.load(folder / "analyses" / "privacy" / f"{method}-seed-3.npz", allow_pickle=False) as content:
        return dict(content)


def numbers(folder, method):
    return json.loads((folder / "analyses" / "privacy" / f"{method}-seed-3.json").read_text())


def test_generated_images_have_their_nearest_ones(folder):
    shown = arrays(folder, "fakes")
    assert {"generated", "nearest"} <= set(shown)
    assert {(shown[name].dtype, shown[name].shape) for name in ("generated", "nearest")} == {
        (np.dtype(np.uint8), (10, 8, 28, 28, 1))
    }
    # The first seed is looked at.
    assert {file.name for file in (folder / "analyses/privacy").glob("*.json")} == {
        "rebafl-seed-3.json", "fakes-seed-3.json",
    }  # fmt: skip
    apart = shown["generated"].astype(float) - shown["nearest"]
    distances = np.sqrt((apart**2).mean((2, 3, 4)))
    found = numbers(folder, "fakes")["nearest"]
    assert found["generated"] == pytest.approx({"mean": distances.mean(), "least": distances.min()}, rel=SUM)
    assert 0 < found["test"]["least"] < found["test"]["mean"]


def test_prototypes_are_attacked_beside_single_images(folder, comparison, attacks):
    shown = arrays(folder, "rebafl")
    attacked = {f"{kind}/{attack}" for kind in ("prototype", "single") for attack in ("upcnn", "vae", "grnn")}
    assert set(shown) == attacked | {"gradient/grnn", "mean", "single"}
    assert {pixels.shape for pixels in shown.values()} == {(10, 1, 28, 28, 1)}
    found = numbers(folder, "rebafl")
    assert set(found["inversion"]) == attacked | {"gradient/grnn"} and "nearest" not in found
    known = [bool(pixels.any()) for pixels in shown["prototype/upcnn"]]
    assert 0 < sum(known) < 10  # classes that nobody delivered have no prototype
    assert attacks.searched == [("features", 2, sum(known) + 10), ("gradient", 2, 4)]
    assert not shown["gradient/grnn"][4:].any() and (shown["gradient/grnn"][:4] == 255).all()
    mean = round(255 * float(comparison.simulations[0].federation.mean[0]))
    assert set(np.unique(shown["single/vae"])) == {mean} and (shown["single/grnn"] == 255).all()


def test_means_and_single_images_are_what_they_are_called(folder, comparison):
    federation, shown = comparison.simulations[0].federation, arrays(folder, "rebafl")
    rows = np.unique(federation.rows)
    for label in range(10):
        own = federation.images[rows[federation.labels[rows] == label]]
        wanted = own.mean(0) if len(own) else np.zeros((28, 28, 1))
        assert np.abs(shown["mean"][label, 0] - wanted).max() <= 0.51
        tests = comparison.dataset.test_images[comparison.dataset.test_labels == label]
        assert (shown["single"][label, 0] == tests).all((1, 2, 3)).any()


def test_the_report_draws_all_of_it_where_the_plugin_is_loaded(folder):
    page = html.unescape(report.write_run_page(folder).read_text())
    names = {path.stem for path in (folder / "plots").glob("*.svg")}
    assert {"pictures-1", "pictures-privacy-attacks-1", "pictures-privacy-nearest-2"} <= names
    for words in ("the client's image that is nearest", "Attacks on prototypes of rebafl"):
        assert words in page
    registered.forget()
    assert "Attacks on prototypes" not in report.write_run_page(folder).read_text()


def test_images_of_a_size_that_no_attack_can_make_are_refused(monkeypatch):
    simulation = SimpleNamespace(setting=SimpleNamespace(model=SimpleNamespace(input_shape=(6, 6, 1))))
    for shares in (True, False):
        monkeypatch.setattr(module, "shares_prototypes", lambda _, shares=shares: shares)
        with pytest.raises(ValueError, match=r"image_shape: received .6, 6, 1.") if shares else nullcontext():
            PrivacyAttacks().check(simulation)


def test_the_attackers_images_are_the_test_set_without_the_single_ones(folder, comparison, attacks):
    dataset, federation = comparison.dataset, comparison.simulations[0].federation
    singles = arrays(folder, "rebafl")["single"][:, 0]
    count = lambda images: Counter(image.tobytes() for image in images)
    rest = count(dataset.test_images) - count(singles)
    for kind, iterations, images in attacks.fitted:
        assert kind in ("upcnn", "vae") and iterations == 2
        pixels = 255 * (np.asarray(images) * federation.std + federation.mean)
        assert np.allclose(pixels, np.rint(pixels), atol=1e-2) and count(np.rint(pixels).astype(np.uint8)) == rest


def test_correlations_are_those_of_the_images_with_their_class_and_with_others():
    images = np.random.default_rng(0).normal(size=(3, 2, 2, 1)).astype(np.float32)
    own = np.array([2, 0])
    found = module._correlations(images[own] * 2 + 1, images, own)
    others = [np.corrcoef(images[a].ravel(), images[b].ravel())[0, 1] for a, b in ((2, 0), (2, 1), (0, 1), (0, 2))]
    assert found["truth"] == pytest.approx(1, abs=FORMULA) and found["others"] == pytest.approx(
        np.mean(others), abs=FORMULA
    )
