"""What a run shows of images: fakes next to real ones, and classes in mini-batches."""

import html
import json
import shutil

import numpy as np
import pytest
import small_run
from rounding import SUM

from fedjax_bal import report

pytestmark = pytest.mark.slow

METHODS = """methods=[{recipe: fedavg}, {recipe: [{name: cbfl, warm_up: 1, fakes: 6, width: 2, latent: 2,
generator_batch: 4, iterations: 2}], name: fakes}]"""
CHANGES = (
    METHODS, "model.name=tiny_bn", "training.rounds=2", "evaluation.every=1",
    "evaluation.local_test_images=20", "seeds=[3, 1]",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run of FedAvg and of a method that makes fakes."""
    place = tmp_path_factory.mktemp("pictures")
    small_run.run(place / "run", small_run.config(place, *CHANGES))
    return place / "run"


def arrays(folder, name):
    with np.load(folder / "pictures" / f"{name}.npz", allow_pickle=False) as content:
        return dict(content)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_fakes_stand_beside_real_images(folder):
    shown = arrays(folder, "fakes-seed-3")
    assert set(shown) == {"real", "generated"}
    assert {(pixels.dtype, pixels.shape) for pixels in shown.values()} == {(np.dtype(np.uint8), (10, 8, 28, 28, 1))}


def test_classes_of_mini_batches_are_told_where_a_method_adds_to_them(folder):
    (entry,) = summary(folder)["batches"]
    assert entry["methods"] == ["fakes"]
    # Two classes a client, twenty real images and six fakes: of each class 10 + 6 (1/2) / 9, of others 6 / 9.
    shares = np.array([10 + 6 * 0.5 / 9] * 2 + [6 / 9] * 8) / 26
    wanted = np.log(10) + (shares * np.log(shares)).sum()
    assert (entry["kl_before"], entry["kl_after"]) == pytest.approx((np.log(5), wanted), abs=SUM)


def test_the_report_draws_all_of_it(folder):
    page = html.unescape(report.write_run_page(folder).read_text())
    names = {path.stem for path in (folder / "plots").glob("*.svg")}
    assert {"local", "pictures-1"} <= names
    for words in (
        "Local models on the test set",
        "Classes in mini-batches",
        "Real and generated images of fakes",
    ):
        assert words in page


def test_what_was_found_stays_when_nothing_is_left_to_do_and_goes_with_its_run(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    before = (tmp_path / "run" / "pictures" / "fakes-seed-3.npz").stat().st_mtime_ns
    small_run.run(tmp_path / "run", small_run.config(tmp_path, *CHANGES))
    assert (tmp_path / "run" / "pictures" / "fakes-seed-3.npz").stat().st_mtime_ns == before
    assert summary(tmp_path / "run")["runs"] == summary(folder)["runs"]
