"""A run folder read back: metrics, models, predictions, and models in files for programs without the package."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import small_run
import small_sweep
from rounding import SUM
from typer.testing import CliRunner

from fedjax_bal import data, load_run
from fedjax_bal.cli.app import app

# The second method's model is fine-tuned for its evaluation alone, the third's network has a projection.
METHODS = "methods=[{recipe: fedavg}, {recipe: fedbabu, name: my body, fine_tune_epochs: 2}, {recipe: moon}]"
CHANGES = (METHODS, "auxiliary={per_class: 3}", "training.rounds=3", "evaluation.every=1", "seeds=[4, 5]")

PROGRAM = """
import json, sys
import jax
import numpy as np

exported, (images, labels) = np.load(sys.argv[1]), np.load(sys.argv[2]).values()
program = jax.export.deserialize(bytearray(exported["program"].tobytes()))
logits = np.concatenate([program.call(images[:1500]), program.call(images[1500:])])
assert len(json.loads(str(exported["about"]))["class_names"]) == logits.shape[1]
assert not any(name.startswith(("flax", "fedjax")) for name in sys.modules)
print(int((logits.argmax(-1) == labels).sum()))
"""

STRANGER = """
import json, sys
import numpy as np

model, (images, labels) = np.load(sys.argv[1]), np.load(sys.argv[2]).values()
about = json.loads(str(model["about"]))
pixels = images.astype(np.float32) / np.float32(255)
pixels = (pixels - np.array(about["mean"], np.float32)) / np.array(about["std"], np.float32)
assert pixels.shape[1:] == tuple(about["input_shape"])
dense = lambda x, name: x @ model[f"params/{name}/kernel"] + model[f"params/{name}/bias"]
logits = dense(np.maximum(dense(pixels.reshape(len(pixels), -1), "body/dense_0/dense"), 0), "head/dense")
assert not any(name.startswith(("jax", "flax", "fedjax")) for name in sys.modules)
print(int((logits.argmax(-1) == labels).sum()))
"""


@pytest.fixture(scope="module")
def finished(trained):
    """The folder of a finished run of three methods."""
    return trained(*CHANGES)


@pytest.fixture
def run(trained):
    """The small comparison, loaded."""
    return load_run(trained())


def pictures():
    dataset = data.load("fashion_mnist_small")
    return dataset.test_images, dataset.test_labels


def hits(folder, method, seed):
    """How many test images the run itself classified correctly in its last round."""
    lines = [line for line in small_run.metrics(folder) if (line["method"], line["seed"]) == (method, seed)]
    return round(lines[-1]["test_accuracy"] * len(pictures()[1]))


@pytest.mark.slow
def test_predictions_are_those_of_the_last_evaluation(finished):
    run, (images, labels) = load_run(finished), pictures()
    for method, seed in (("fedavg", None), ("my body", 5), ("moon", 4)):
        found = run.predict(images, method, seed)
        assert (found == labels).sum() == hits(finished, method, seed or 4)
    # Floats are on the scale of normalised bytes.
    np.testing.assert_array_equal(
        run.predict((images[:20] / 255).astype(np.float32), "moon"), run.predict(images[:20], "moon")
    )


@pytest.mark.slow
def test_metrics_are_columns_and_a_frame_where_pandas_is_there(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    columns, lines = run.metrics(), small_run.metrics(run.path)
    chosen = (columns["method"] == "control variates") & (columns["seed"] == 1)
    wanted = [line["test_loss"] for line in lines if (line["method"], line["seed"]) == ("control variates", 1)]
    assert columns["test_loss"][chosen].tolist() == wanted and len(wanted) == 4
    assert columns["label"].tolist() == columns["method"].tolist()  # without labels
    assert np.stack(columns["per_class_accuracy"]).shape == (2 * 2 * 4, 10)
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda columns: ("frame", list(columns))))
    assert run.metrics() == ("frame", list(columns))


@pytest.mark.slow
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_taken(trained, tmp_path):
    shutil.copytree(trained(*small_run.ONE), tmp_path / "run")
    newest = max((tmp_path / "run" / "checkpoints" / "fedavg-seed-0").iterdir())
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged.*using the one before it"):
        assert load_run(tmp_path / "run").trained().round == 2
    for file in newest.parent.iterdir():
        file.unlink()
    with pytest.raises(ValueError, match="no checkpoint of fedavg, seed 0"):
        load_run(tmp_path / "run").variables("fedavg")


def test_what_is_not_there_is_named(run, tmp_path):
    with pytest.raises(ValueError, match="method: received 'fedag'"):
        run.variables("fedag")
    with pytest.raises(ValueError, match="seed: received 3"):
        run.variables("fedavg", seed=3)
    with pytest.raises(ValueError, match="method: received None, but there are several: give one of fedavg, control"):
        run.variables()
    with pytest.raises(ValueError, match=r"inputs: received \[2, 28, 28\] of uint8"):
        run.predict(np.zeros((2, 28, 28), np.uint8), "fedavg")
    with pytest.raises(ValueError, match="inputs: received .* of int64"):
        run.predict(np.zeros((2, 28, 28, 1), np.int64), "fedavg")
    with pytest.raises(ValueError, match=r"inputs: received \[2, 28, 28, 1\] of uint16"):
        run.predict(np.zeros((2, 28, 28, 1), np.uint16), "fedavg")
    with pytest.raises(ValueError, match=r"inputs: received floats from 0 to 255, must lie in \[0, 1\]"):
        run.predict(np.array([0.0, 255.0]).repeat(28 * 28).reshape(2, 28, 28, 1), "fedavg")
    with pytest.raises(ValueError, match="no such file"):
        load_run(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    """A run on a table, and the columns of its test rows."""
    folder = tmp_path_factory.mktemp("patients")
    rng = np.random.default_rng(0)
    kinds = np.arange(90) % 3
    table = {
        "age": np.round(rng.normal(50, 9, 90) + 30 * (kinds == 1), 2),
        "smoker": (rng.random(90) < 0.3 + 0.3 * kinds).astype(int),
        "pressure": np.round(rng.normal(size=90) + 3 * (kinds == 2), 3),
        "sex": np.array(["F", "M"])[(rng.random(90) < 0.2 + 0.6 * (kinds == 1)).astype(int)],
        "kind": np.array(["asthma", "copd", "healthy"])[kinds],
    }
    for name, chosen in (("train", slice(60)), ("test", slice(60, 90))):
        rows = zip(*(column[chosen].tolist() for column in table.values()), strict=True)
        text = "\n".join(",".join(map(str, row)) for row in (list(table), *rows))
        (folder / f"{name}.csv").write_text(text + "\n")
    changes = (
        f"dataset={{name: csv, path: {folder / 'train.csv'}, test: {folder / 'test.csv'}, label: kind, "
        "categories: [sex]}",
        "partition={scheme: iid, clients: 3}", "methods=[fedavg]", "seeds=1", "training.rounds=4",
        "optimizer={name: sgd, learning_rate: 0.3}", "availability=always", "delivery=always", "evaluation.every=4",
    )  # fmt: skip
    small_run.run(folder / "run", small_run.config(folder, *changes))
    return load_run(folder / "run"), {name: column[60:] for name, column in table.items()}


@pytest.mark.slow
def test_a_table_is_predicted_by_the_names_of_its_columns(patients):
    run, table = patients
    assert run.input_names == ("age", "smoker", "pressure", "sex=F", "sex=M") and run.class_names == (
        "asthma",
        "copd",
        "healthy",
    )
    coded = table | {f"sex={sex}": table["sex"] == sex for sex in "FM"}
    trained = np.stack([coded[name] for name in run.input_names], axis=1)
    wanted, chances = run.predict(trained), run.predict(trained, probabilities=True)
    hits = [line["test_accuracy"] for line in small_run.metrics(run.path)][-1] * 30
    assert (np.array(run.class_names)[wanted] == table["kind"]).sum() == round(hits)
    turned = dict(reversed(table.items()))
    for frame in (table, turned, turned | {"smoker": table["smoker"].astype(bool), "hospital": ["a"] * 30}):
        np.testing.assert_array_equal(run.predict(frame), wanted)
        np.testing.assert_array_equal(run.predict(frame, probabilities=True), chances)
    names = run.predict(turned, names=True)
    assert names.tolist() == [run.class_names[label] for label in wanted]
    assert chances.dtype == np.float32 and chances.shape == (30, 3)
    np.testing.assert_allclose(chances.sum(1), 1, rtol=SUM)
    np.testing.assert_array_equal(chances.argmax(1), wanted)


@pytest.mark.slow
def test_frames_are_predicted_with_the_types_that_training_takes(patients):
    run, table = patients
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table)[["pressure", "kind", "sex", "age", "smoker"]]
    wanted = run.predict(table, probabilities=True)
    for types in ({"smoker": bool}, {"smoker": "boolean", "age": "Float64"}, {"age": object}):
        np.testing.assert_array_equal(run.predict(frame.astype(types), probabilities=True), wanted, str(types))
    polars = pytest.importorskip("polars")
    np.testing.assert_array_equal(run.predict(polars.DataFrame(table)[:, ::-1], probabilities=True), wanted)


def test_rows_that_do_not_fit_a_table_are_refused(patients, run):
    table_run, table = patients
    lacking = {name: column for name, column in table.items() if name != "age"}
    with pytest.raises(ValueError, match=r"inputs: has no column 'age' \("):
        table_run.predict(lacking | {"Age": table["age"]})
    with pytest.raises(ValueError, match="inputs: column 'age' has 1 missing value in 30 rows, the first in row 2"):
        table_run.predict(table | {"age": np.where(np.arange(30) == 2, np.nan, table["age"])})
    with pytest.raises(ValueError, match="inputs: column 'sex' holds 'D' in row 0; .* F, M"):
        table_run.predict(table | {"sex": ["D", *table["sex"][1:]]})
    for single in ([50.0, 1.0, 0.5, 1.0, 0.0], np.array([50, 1, 0.5, 1, 0], object)):
        with pytest.raises(
            ValueError, match=r"inputs: received \[5\] .*inputs, 5 \(age, smoker, .*single row is frame.iloc"
        ):
            table_run.predict(single)
    with pytest.raises(ValueError, match="inputs: received masked values"):
        table_run.predict(np.ma.masked_equal(np.zeros((2, 5), np.float32), 0))
    with pytest.raises(ValueError, match="names: received True together with probabilities=True"):
        table_run.predict(table, names=True, probabilities=True)
    # A run on images has no columns, and a frame no order.
    with pytest.raises(ValueError, match=r"inputs: received a dict, but the run's inputs have no names: .*28, 28, 1"):
        run.predict(table, "fedavg")


def test_exports_have_the_names_of_columns_and_classes(patients, tmp_path):
    run, _ = patients
    found = [json.loads(str(np.load(run.export(out=tmp_path / "model.npz"))["about"]))]
    found.append(read_safetensors(run.export(out=tmp_path / "model.safetensors"))[1])
    if importlib.util.find_spec("flatbuffers"):
        found.append(json.loads(str(np.load(run.export(kind="stablehlo", out=tmp_path / "m"))["about"])))
    for about in found:
        assert about["input_names"] == ["age", "smoker", "pressure", "sex=F", "sex=M"]
        assert about["class_names"] == ["asthma", "copd", "healthy"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a sweep of two axes, with a point that can't be set up, and the rows of its table."""
    folder = tmp_path_factory.mktemp("swept")
    text = "sweep: [{training.optimizer.learning_rate: [0.05, 0.2]}, {partition.samples_per_client: [40, 40000]}]"
    changes = ("methods=[fedavg]", "training.rounds=2", "seeds=2")
    rows, *_ = small_sweep.carry(small_sweep.sweep(folder, text, *changes), folder / "out")
    return folder / "out", rows


@pytest.mark.slow
def test_a_sweep_is_a_frame_and_its_points_are_runs(swept, monkeypatch):
    path, rows = swept
    sweep = load_run(path)
    rate, samples = "training.optimizer.learning_rate", "partition.samples_per_client"
    assert sweep.axes == (rate, samples) and sweep.name == "mine"
    summary = f"name='mine', axes=['{rate}', '{samples}'], points=4, methods=['fedavg'], runs=8, done=4"
    assert repr(sweep) == f"LoadedSweep({summary})"
    monkeypatch.setitem(sys.modules, "pandas", None)
    frame = sweep.frame()
    assert frame[rate].tolist() == [0.05] * 4 + [0.2] * 4
    assert frame[samples].tolist() == [40, 40, 40000, 40000] * 2
    assert (frame["method"].tolist(), frame["seed"].tolist()) == (["fedavg"] * 8, [0, 1] * 4)
    done = frame["status"] == "done"
    wanted = [row["last5_accuracy"] for row in rows if row["status"] == "done"]
    assert frame["last5_accuracy"][done].tolist() == wanted and len(wanted) == 4
    assert np.isnan(frame["last5_accuracy"][~done]).all() and "40000" in frame["failure"][2]
    # Points that could not be set up have no run.
    assert len(sweep) == len(sweep.points) == 2
    labels = [run.path.name for run in sweep]
    assert labels == frame["point"][done][::2].tolist()
    assert sweep[1].path == sweep[labels[1]].path == sweep.points[1].path
    final = sweep[1].metrics()
    chosen = (final["round"] == 2) & (final["seed"] == 1)
    assert final["test_accuracy"][chosen].tolist() == frame["final_accuracy"][done][[3]].tolist()
    assert sweep[0].predict(pictures()[0][:5], seed=1).shape == (5,)
    with pytest.raises(ValueError, match="point: received 'rate=1'"):
        sweep["rate=1"]
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda columns: ("frame", list(columns))))
    assert sweep.frame() == ("frame", list(frame))


@pytest.mark.slow
def test_a_damaged_or_unfinished_sweep_is_named(swept, tmp_path):
    path, _ = swept
    begun = shutil.copytree(path, tmp_path / "begun")
    for name in ("SHA256SUMS", "results.csv"):
        (begun / name).unlink()
    sweep = load_run(begun)
    assert "runs=0" in repr(sweep)
    with pytest.raises(ValueError, match="results.csv: doesn't exist yet"):
        sweep.frame()
    (begun / "sweep.yaml").write_text("")
    with pytest.raises(ValueError, match="sweep.yaml"):
        load_run(begun)
    result = CliRunner().invoke(app, ["export", str(path)])
    assert result.exit_code == 2 and "holds a sweep; give the folder of one of its points" in result.output


def export(*arguments):
    """The file that the command writes."""
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return Path(result.output.removeprefix("model: ").strip())


@pytest.mark.slow
def test_texts_are_predicted_from_ids_within_the_vocabulary(tmp_path):
    labels = np.arange(40) % 2
    ids = data.pad([[1 + label, 3] for label in labels])
    np.savez(tmp_path / "texts.npz", train_images=ids, train_labels=labels, test_images=ids, test_labels=labels)
    changes = (
        f"dataset={{name: npz, path: {tmp_path / 'texts.npz'}}}", "partition={scheme: iid, clients: 4}",
        "model={name: text_mean, vocabulary: 5, embedding: 3, hidden: 0}", "optimizer={name: adam, learning_rate: 0.3}",
        "methods=[fedavg]", "seeds=1", "training.rounds=5", "availability=always", "delivery=always",
    )  # fmt: skip
    small_run.run(tmp_path / "run", small_run.config(tmp_path, *changes))
    run = load_run(tmp_path / "run")
    assert run.predict(np.array([[2, 3], [1, 3], [3, 2]])).tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=r"inputs: received token ids from 1 to 5, .* a vocabulary of 5 \(0 to 4\)"):
        run.predict(np.array([[1, 5]]))
    with pytest.raises(ValueError, match=r"received \[1, 2\] of float64"):
        run.predict(np.array([[1.0, 3.0]]))


@pytest.mark.slow
def test_a_program_without_the_package_predicts_the_same(finished, tmp_path):
    finished = shutil.copytree(finished, tmp_path / "run")
    file = export(finished, "--method", "fedavg", "--seed", 5)
    assert file == finished / "exports" / "fedavg-seed-5.npz"
    images, labels = pictures()
    np.savez(tmp_path / "test.npz", images=images, labels=labels)
    script = [sys.executable, "-I", "-c", STRANGER, str(file), str(tmp_path / "test.npz")]
    said = subprocess.run(script, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert said.stdout.strip() == str(hits(finished, "fedavg", 5)), said.stderr
    about = json.loads(str(np.load(file)["about"]))
    assert (about["run"], about["method"], about["seed"], about["round"]) == ("small", "fedavg", 5, 3)
    assert about["class_names"][0] == "T-shirt/top" and len(about["config_sha256"]) == 64
    assert round(about["test_accuracy"] * len(labels)) == hits(finished, "fedavg", 5)


def predict_elsewhere(file, folder):
    """How many test images an exported program classifies correctly, in a process without the package."""
    libraries = pytest.importorskip("flatbuffers").__file__.rsplit("/", 2)[0]
    np.savez(folder / "test.npz", images=pictures()[0], labels=pictures()[1])
    script = [sys.executable, "-c", PROGRAM, str(file), str(folder / "test.npz")]
    environment = os.environ | {"PYTHONPATH": libraries, "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(script, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_an_exported_program_predicts_the_same_without_the_package(finished, tmp_path):
    pytest.importorskip("flatbuffers")
    finished = shutil.copytree(finished, tmp_path / "run")
    file = export(finished, "--format", "stablehlo", "--method", "moon")
    assert file == finished / "exports" / "moon-seed-4.stablehlo"
    assert predict_elsewhere(file, tmp_path) == hits(finished, "moon", 4)


def test_a_missing_library_for_programs_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    monkeypatch.delitem(sys.modules, "jax._src.export.serialization", raising=False)  # has it
    with pytest.raises(ValueError, match="format: stablehlo needs a library: pip install flatbuffers"):
        run.export("fedavg", out=tmp_path / "model.stablehlo")


@pytest.mark.slow
def test_a_folder_is_enough_for_models_that_are_evaluated_as_they_are(finished, tmp_path, monkeypatch):
    images, labels = pictures()
    moved = shutil.copytree(finished, tmp_path / "moved")
    rebuilt = {name: load_run(finished)._rebuilt(method, 4) for name, method in (("fedavg", 0), ("moon", 2))}

    def refuse(*given):
        raise ValueError("there are no data")

    monkeypatch.setattr("fedjax_bal.lab.setup.SharedInputs.dataset", refuse)
    run = load_run(moved)
    for name, known in rebuilt.items():
        found = run.trained(name, 4)
        jax.tree.map(np.testing.assert_array_equal, found.variables, known.variables)
        jax.tree.map(np.testing.assert_array_equal, found.inputs, known.inputs)
        assert (found.round, found.model.name, found.model.input_shape) == (3, "mlp", (28, 28, 1))
        assert (run.predict(images, name, 4) == labels).sum() == hits(finished, name, 4)
    assert run.export("moon", out=tmp_path / "model.npz").exists()
    # Its model is fine-tuned on the server's rows before every evaluation.
    with pytest.raises(ValueError, match="there are no data"):
        run.variables("my body")
    # A killed session leaves no summary.
    (moved / "summary.json").unlink()
    with pytest.raises(ValueError, match="there are no data"):
        load_run(moved).variables("fedavg")
    monkeypatch.undo()
    jax.tree.map(np.testing.assert_array_equal, load_run(moved).variables("moon"), rebuilt["moon"].variables)


def read_safetensors(file):
    """Arrays by name, and the text about them, as the format's description says."""
    content = file.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    about = json.loads(header.pop("__metadata__")["about"])
    arrays = {}
    for name, own in header.items():
        first, last = own["data_offsets"]
        assert own["dtype"] == "F32"
        arrays[name] = np.frombuffer(content[begin + first : begin + last], "<f4").reshape(own["shape"])
    assert begin % 8 == 0 and max(own["data_offsets"][1] for own in header.values()) == len(content) - begin
    return arrays, about


def test_formats_hold_the_same(run, tmp_path):
    method = "control variates"
    npz = dict(np.load(export(run.path, "--method", method, "--out", tmp_path / "model.npz")))
    arrays, about = read_safetensors(export(run.path, "--method", method, "--out", tmp_path / "m.safetensors"))
    assert about == json.loads(str(npz.pop("about"))) and about["method"] == method
    assert {name: array.tolist() for name, array in npz.items()} == {name: own.tolist() for name, own in arrays.items()}
    kernel = run.variables(method).params["head"]["dense"]["kernel"]
    assert npz["params/head/dense/kernel"].tolist() == kernel.tolist()


@pytest.mark.slow
def test_orbax_reads_what_is_exported_and_nothing_is_removed_for_it(run, tmp_path):
    import orbax.checkpoint as orbax

    folder = export(run.path, "--method", "fedavg", "--format", "orbax", "--out", tmp_path / "model")
    items = orbax.args.Composite(variables=orbax.args.StandardRestore(), about=orbax.args.JsonRestore())
    with orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as reader:
        found = reader.restore(folder, items)
    wanted = run.variables("fedavg")
    jax.tree.map(np.testing.assert_array_equal, found["variables"]["params"], wanted.params)
    assert found["about"]["dataset"] == "fashion_mnist_small"
    again = CliRunner().invoke(
        app, ["export", str(run.path), "--method", "fedavg", "--format", "orbax", "--out", str(folder)]
    )
    assert again.exit_code == 2 and "already exists; choose another folder" in again.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "onnx"], "format: received 'onnx'; allowed: npz, safetensors, orbax, stablehlo"),
        (["--out", "/dev/null/model.npz"], "/dev/null"),
    ],
)
def test_an_export_that_can_not_be_made_is_one_message(run, arguments, message):
    result = CliRunner().invoke(app, ["export", str(run.path), "--method", "fedavg", *arguments])
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output
