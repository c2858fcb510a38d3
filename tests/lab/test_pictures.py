"""What a run shows of images: fakes, their neighbours, attacks on prototypes, and classes in mini-batches."""

import html
import json
import shutil
from collections import Counter

import jax
import numpy as np
import pytest
import small_run
from rounding import FORMULA, SUM

from fedjax_bal import report
from fedjax_bal.config import load_config
from fedjax_bal.contrib.privacy import Regression
from fedjax_bal.lab import RunFolder
from fedjax_bal.lab.post_training import _correlations
from fedjax_bal.lab.setup import set_up
from fedjax_bal.lab.summary import summarise_partitions

pytestmark = pytest.mark.slow

METHODS = """methods=[{recipe: rebafl}, {recipe: [{name: cbfl, warm_up: 1, fakes: 6, width: 2, latent: 2,
generator_batch: 4, iterations: 2}], name: fakes}]"""
CHANGES = (
    METHODS, "model.name=tiny_bn", "training.rounds=2", "evaluation.every=1", "evaluation.privacy=true",
    "evaluation.attack_steps=2", "evaluation.local_test_images=20", "seeds=[3, 1]",
)  # fmt: skip


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
            patch.setattr(f"fedjax_bal.lab.post_training.privacy.{name}", getattr(stand_in, name))
        yield stand_in


@pytest.fixture(scope="module")
def folder(tmp_path_factory, attacks):
    """A finished run of a method that shares prototypes and one that makes fakes."""
    place = tmp_path_factory.mktemp("pictures")
    small_run.run(place / "run", small_run.config(place, *CHANGES))
    return place / "run"


@pytest.fixture(scope="module")
def comparison(folder):
    """What it trained on, set up again."""
    return set_up(load_config(folder / "config.yaml"))


def arrays(folder, name):
    with np.load(folder / "pictures" / f"{name}.npz", allow_pickle=False) as content:
        return dict(content)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_fakes_stand_beside_real_images_and_their_nearest_ones(folder):
    shown = arrays(folder, "fakes-seed-3")
    assert set(shown) == {"real", "generated", "nearest"}
    assert {(pixels.dtype, pixels.shape) for pixels in shown.values()} == {(np.dtype(np.uint8), (10, 8, 28, 28, 1))}
    assert "nearest" not in arrays(folder, "fakes-seed-1")  # the first seed is looked at
    apart = shown["generated"].astype(float) - shown["nearest"]
    distances = np.sqrt((apart**2).mean((2, 3, 4)))
    (found,) = [run["leaks"]["nearest"] for run in summary(folder)["runs"] if run["leaks"] and run["method"] == "fakes"]
    assert found["generated"] == pytest.approx({"mean": distances.mean(), "least": distances.min()}, rel=SUM)
    assert 0 < found["test"]["least"] < found["test"]["mean"]


def test_prototypes_are_attacked_beside_single_images(folder, comparison, attacks):
    shown = arrays(folder, "rebafl-seed-3")
    attacked = {f"{kind}/{attack}" for kind in ("prototype", "single") for attack in ("upcnn", "vae", "grnn")}
    assert set(shown) == attacked | {"gradient/grnn", "mean", "single"}
    assert {pixels.shape for pixels in shown.values()} == {(10, 1, 28, 28, 1)}
    (leaks,) = [run["leaks"] for run in summary(folder)["runs"] if run["leaks"] and run["method"] == "rebafl"]
    assert set(leaks["inversion"]) == attacked | {"gradient/grnn"} and "nearest" not in leaks
    known = [bool(pixels.any()) for pixels in shown["prototype/upcnn"]]
    assert 0 < sum(known) < 10  # classes that nobody delivered have no prototype
    assert attacks.searched == [("features", 2, sum(known) + 10), ("gradient", 2, 4)]
    assert not shown["gradient/grnn"][4:].any() and (shown["gradient/grnn"][:4] == 255).all()
    mean = round(255 * float(comparison.simulations[0].federation.mean[0]))
    assert set(np.unique(shown["single/vae"])) == {mean} and (shown["single/grnn"] == 255).all()


def test_the_attackers_images_are_the_test_set_without_the_single_ones(folder, comparison, attacks):
    dataset, federation = comparison.dataset, comparison.simulations[0].federation
    singles = arrays(folder, "rebafl-seed-3")["single"][:, 0]
    count = lambda images: Counter(image.tobytes() for image in images)
    rest = count(dataset.test_images) - count(singles)
    for kind, iterations, images in attacks.fitted:
        assert kind in ("upcnn", "vae") and iterations == 2
        pixels = 255 * (np.asarray(images) * federation.std + federation.mean)
        assert np.allclose(pixels, np.rint(pixels), atol=1e-2) and count(np.rint(pixels).astype(np.uint8)) == rest


def test_correlations_are_those_of_the_images_with_their_class_and_with_others():
    images = np.random.default_rng(0).normal(size=(3, 2, 2, 1)).astype(np.float32)
    own = np.array([2, 0])
    found = _correlations(images[own] * 2 + 1, images, own)
    others = [np.corrcoef(images[a].ravel(), images[b].ravel())[0, 1] for a, b in ((2, 0), (2, 1), (0, 1), (0, 2))]
    assert found["truth"] == pytest.approx(1, abs=FORMULA) and found["others"] == pytest.approx(
        np.mean(others), abs=FORMULA
    )


def test_means_and_single_images_are_what_they_are_called(folder, comparison):
    federation, shown = comparison.simulations[0].federation, arrays(folder, "rebafl-seed-3")
    rows = np.unique(federation.rows)
    for label in range(10):
        own = federation.images[rows[federation.labels[rows] == label]]
        wanted = own.mean(0) if len(own) else np.zeros((28, 28, 1))
        assert np.abs(shown["mean"][label, 0] - wanted).max() <= 0.51
        tests = comparison.dataset.test_images[comparison.dataset.test_labels == label]
        assert (shown["single"][label, 0] == tests).all((1, 2, 3)).any()


def test_classes_of_mini_batches_are_told_where_a_method_adds_to_them(folder):
    (entry,) = summary(folder)["batches"]
    assert entry["methods"] == ["fakes"]
    # Two classes a client, twenty real images and six fakes: of each class 10 + 6 (1/2) / 9, of others 6 / 9.
    shares = np.array([10 + 6 * 0.5 / 9] * 2 + [6 / 9] * 8) / 26
    wanted = np.log(10) + (shares * np.log(shares)).sum()
    assert (entry["kl_before"], entry["kl_after"]) == pytest.approx((np.log(5), wanted), abs=SUM)


def test_the_report_draws_all_of_it(folder):
    page = html.unescape(report.build(folder).read_text())
    names = {path.stem for path in (folder / "plots").glob("*.svg")}
    assert {"local", "pictures-1", "attacks-1"} <= names
    for words in (
        "Local models on the test set",
        "Mini-batches of fakes, which the method fills up",
        "the client's image that is nearest",
        "Attacks on prototypes of rebafl",
    ):
        assert words in page


def test_what_was_found_stays_when_nothing_is_left_to_do_and_goes_with_its_run(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    before = (tmp_path / "run" / "pictures" / "rebafl-seed-3.json").stat().st_mtime_ns
    small_run.run(tmp_path / "run", small_run.config(tmp_path, *CHANGES))
    assert (tmp_path / "run" / "pictures" / "rebafl-seed-3.json").stat().st_mtime_ns == before
    assert summary(tmp_path / "run")["runs"] == summary(folder)["runs"]


def test_methods_that_train_on_the_same_rows_share_a_partition(tmp_path):
    changes = (METHODS, "model.name=tiny_bn", "training.batch_size=13", "training.rounds=1", "seeds=[0]")
    config, folder = small_run.config(tmp_path, *changes), RunFolder(tmp_path / "run")
    with folder.claimed(config):
        (entry,) = summarise_partitions(set_up(config))
    assert entry["methods"] == ["rebafl", "fakes"]
    assert {sum(counts) for counts in entry["class_counts"]} == {40}
