"""Weights read from files: those of exported models, and those that others have written."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_run
from rounding import SUM

from fedjax_bal import data, export_model, load_weights, models, recipes, register, simulate, testing
from fedjax_bal.lab.exports import logits_of
from fedjax_bal.lab.model_files import MODEL_FORMATS
from fedjax_bal.lab.setup import SharedInputs, _digest_of_weights, set_up
from fedjax_bal.types import Model, Variables

MLP = models.build("mlp", 10, (28, 28, 1))
FORMATS = pytest.mark.parametrize("ending", ["npz", "safetensors"])


def start(seed=3):
    return jax.device_get(MLP.init(jax.random.key(seed)))


@FORMATS
def test_what_was_exported_is_read_without_a_pickle(ending, tmp_path):
    weights = load_weights(export_model(tmp_path / f"w.{ending}", MLP, start()))
    jax.tree.map(np.testing.assert_array_equal, weights, start())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedncm", "fedacg"])
def test_a_result_has_the_model_that_was_tested(name):
    recipe = getattr(recipes, name)()
    federation, (images, labels) = testing.toy.federation(), testing.toy.test_set()
    result = simulate(recipe, models.build("mlp", 3, (1, 4, 1)), federation, (images, labels), rounds=2, seed=0)
    logits = logits_of(result.model, result.evaluated, images, federation.mean, federation.std)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    assert result.history[-1]["test_loss"] == pytest.approx(float(losses.mean()), rel=SUM)
    same = jax.tree.map(np.array_equal, result.evaluated, result.variables)
    assert all(jax.tree.leaves(same)) == (name == "fedavg")


def test_files_of_others_are_read(tmp_path):
    kernel = np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "w.npz", **{"params/out/kernel": kernel, "batch_stats/norm/mean": np.ones(2)})
    weights = load_weights(tmp_path / "w.npz")
    assert weights.params["out"]["kernel"].tolist() == kernel.tolist() and set(weights.stats) == {"norm"}
    MODEL_FORMATS["safetensors"].write(tmp_path / "w.safetensors", {"params/out": kernel.astype("f2")}, "{}")
    assert load_weights(tmp_path / "w.safetensors").params["out"].dtype == np.float16


@pytest.mark.parametrize(
    ("model", "images", "expected"),
    [
        (
            MLP,
            np.zeros((4, 28, 28, 1), np.uint8),
            "Float32 [batch, 28, 28, 1]: bytes are divided by 255, then mean is subtracted and the difference divided "
            "by std, channel by channel",
        ),
        (
            models.build("mlp", 2, (5,)),
            np.zeros((4, 5)),
            "Float32 [batch, 5]: mean is subtracted and the difference divided by std, feature by feature",
        ),
        (
            models.build("text_mean", 2, (7,), vocabulary=9),
            np.zeros((4, 7), np.int32),
            "Int32 [batch, 7]: token ids, 0 is padding",
        ),
    ],
)
def test_the_description_says_what_the_network_takes(tmp_path, model, images, expected):
    federation = data.federate(images, np.arange(4) % 2, [np.arange(4)], 2)
    file = export_model(tmp_path / "w.npz", model, model.init(jax.random.key(0)), federation)
    assert json.loads(str(np.load(file)["about"]))["input"] == expected


def test_other_files_are_refused(tmp_path):
    np.savez(tmp_path / "pickle.npz", **{"params/w": np.array([{}], object)}, allow_pickle=True)
    np.savez(tmp_path / "torch.npz", **{"0.weight": np.zeros((3, 2))})
    np.savez(tmp_path / "empty.npz")
    for name, message in {
        "pickle.npz": "damaged.*allow_pickle=False",
        "torch.npz": "received arrays named 0.weight, must be named as in an exported model, .*weights_from_torch",
        "empty.npz": "received arrays named nothing",
        "none.npz": "missing",
        "model.pt": "the extension of .*model.pt: received 'pt'; allowed: npz, safetensors",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_weights(tmp_path / name)


def weighted(tmp_path, *changes):
    return small_run.config(tmp_path, "model.weights=" + str(tmp_path / "w.npz"), *changes)


def test_a_configuration_names_the_weights_that_all_runs_start_from(tmp_path):
    export_model(tmp_path / "w.npz", MLP, start())
    comparison = set_up(
        weighted(tmp_path, "methods=[fedavg, {recipe: fedprox, model: {weights: null}}]"), SharedInputs(devices=1)
    )
    with_weights, drawn = (simulation.setting.model for simulation in comparison.simulations)
    for seed in (0, 1):
        jax.tree.map(np.testing.assert_array_equal, with_weights.init(jax.random.key(seed)), start())
    assert not np.array_equal(
        drawn.init(jax.random.key(0)).params["head"]["dense"]["bias"], start().params["head"]["dense"]["bias"]
    )
    # The file's content belongs to the run, its name alone doesn't.
    first, second = comparison.fingerprints
    export_model(tmp_path / "w.npz", MLP, start(4))
    config = weighted(tmp_path)
    assert SharedInputs(None, 1).fingerprint(config.methods[0]).tolist() != first.tolist() != second.tolist()


def test_each_number_that_a_network_starts_from_belongs_to_its_digest():
    def digest(scale, kernel):
        given = Variables({"scale": np.float32(scale), "kernel": np.full(3, kernel, np.float32)}, {})
        return _digest_of_weights(MLP._replace(init=lambda key: jax.tree.map(jnp.asarray, given)))

    assert digest(1, 2) == digest(1, 2)
    assert len({digest(1, 2), digest(3, 2), digest(1, 3)}) == 3
    assert _digest_of_weights(MLP) is None


def test_weights_that_a_plug_in_reads_belong_to_the_run(tmp_path):
    def fingerprint(seed):
        export_model(tmp_path / "w.npz", MLP, start(seed))

        @register("model", "of_file")  # as in another session, which builds the network anew
        def of_file(num_classes: int, input_shape: tuple[int, ...]) -> Model:
            """A network with weights of its own."""
            network = models.build("mlp", num_classes, input_shape)
            return models.with_weights(network, load_weights(tmp_path / "w.npz"))

        config = small_run.config(tmp_path, "model=of_file", "methods=[fedavg]")
        return SharedInputs(None, 1).fingerprint(config.methods[0]).tolist()

    assert fingerprint(3) == fingerprint(3) != fingerprint(4)


def test_weights_that_do_not_fit_are_refused_by_key_and_name(tmp_path):
    wide = models.build("mlp", 10, (28, 28, 1), hidden=[32])
    export_model(tmp_path / "w.npz", wide, wide.init(jax.random.key(0)))
    message = (
        r"model.weights: .*w.npz: received \[32\] for params.body.dense_0.dense.bias, where the model mlp has \[64\]"
    )
    with pytest.raises(ValueError, match=message):
        set_up(weighted(tmp_path))
    (tmp_path / "w.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="model.weights: .*w.npz: damaged.*is not an npz file"):
        set_up(weighted(tmp_path))


def test_weights_are_for_inputs_and_classes_of_the_same_names_in_the_same_order(tmp_path):
    rows = np.random.default_rng(0).normal(size=(40, 2))

    def table(inputs, classes):
        kinds = np.array(classes)[np.arange(40) % 2]
        return data.from_pandas(dict(zip(inputs, rows.T, strict=True)) | {"kind": kinds}, "kind")

    def federate(dataset):
        return data.federate(dataset, [np.arange(len(dataset.train_labels))])

    model = models.build("mlp", 2, (2,))
    variables = model.init(jax.random.key(0))
    trained_on = federate(table(["age", "crp"], ["sick", "well"]))
    file = export_model(tmp_path / "w.npz", model, variables, trained_on)
    jax.tree.map(np.testing.assert_array_equal, load_weights(file, trained_on), jax.device_get(variables))
    with pytest.raises(ValueError, match="w.npz: was trained on the inputs age, crp; .* another order, crp, age"):
        load_weights(file, federate(table(["crp", "age"], ["sick", "well"])))
    with pytest.warns(UserWarning, match="on the classes sick, well; the data's gezond, ziek take their places"):
        load_weights(file, federate(table(["age", "crp"], ["ziek", "gezond"])))
    with pytest.warns(UserWarning, match="has names of inputs or classes: load_weights"):
        load_weights(file)


def test_a_configuration_s_weights_are_compared_by_name(tmp_path):
    text = "age,crp,kind\n" + "".join(f"{row / 7},{row / 3},{'sick' if row % 2 else 'well'}\n" for row in range(40))
    (tmp_path / "t.csv").write_text(text)
    dataset = data.load("csv", path=tmp_path / "t.csv", label="kind")
    federation = data.federate(dataset, [np.arange(len(dataset.train_labels))])
    model = models.build("mlp", 2, (2,), hidden=[4])
    export_model(tmp_path / "w.npz", model, model.init(jax.random.key(0)), federation)

    def run(*changes):
        dataset = f"dataset={{name: csv, path: {tmp_path / 't.csv'}, label: kind}}"
        partition = "partition={scheme: iid, clients: 4}"
        return weighted(tmp_path, dataset, partition, "model={name: mlp, hidden: [4]}", "methods=[fedavg]", *changes)

    weights = f"model.weights={tmp_path / 'w.npz'}"
    set_up(run(weights))
    with pytest.raises(
        ValueError, match=r"model.weights: .*w.npz: was trained on the inputs age, crp; .* order of inputs"
    ):
        set_up(run(weights, "dataset.inputs=[crp, age]"))
    (tmp_path / "t.csv").write_text(text.replace("sick", "ziek"))
    inputs = SharedInputs(devices=1)
    set_up(run(weights), inputs)
    assert any("on the classes sick, well; the data's well, ziek take their places" in text for text in inputs.cautions)


def test_a_renamed_column_or_client_is_other_data(tmp_path):
    rows = "".join(f"{row / 7},{row / 3},{'sick' if row % 2 else 'well'},{'ab'[row % 3 == 0]}\n" for row in range(40))

    def fingerprint(text):
        (tmp_path / "t.csv").write_text(text)
        dataset = f"dataset={{name: csv, path: {tmp_path / 't.csv'}, label: kind, clients: site}}"
        config = small_run.config(
            tmp_path,
            dataset,
            "partition={scheme: natural, clients: 2}",
            "model=mlp",
            "methods=[fedavg]",
            "selection.clients_per_round=1",
        )
        return SharedInputs(None, 1).fingerprint(config.methods[0]).tolist()

    before = fingerprint(f"age,crp,kind,site\n{rows}")
    assert before == fingerprint(f"age,crp,kind,site\n{rows}")
    assert before != fingerprint(f"crp,age,kind,site\n{rows}")
    assert before != fingerprint(f"age,crp,kind,site\n{rows}".replace(",a\n", ",Aachen\n"))


@pytest.mark.slow
def test_a_run_does_not_resume_with_other_weights(tmp_path):
    export_model(tmp_path / "w.npz", MLP, start())
    small_run.run(tmp_path / "run", weighted(tmp_path, "methods=[fedavg]", "seeds=1"))
    longer = weighted(tmp_path, "methods=[fedavg]", "seeds=1", "training.rounds=8")
    small_run.run(tmp_path / "run", longer)
    export_model(tmp_path / "w.npz", MLP, start(4))
    with pytest.raises(ValueError, match="started with different .*initial weights"):
        small_run.run(tmp_path / "run", weighted(tmp_path, "methods=[fedavg]", "seeds=1", "training.rounds=9"))
