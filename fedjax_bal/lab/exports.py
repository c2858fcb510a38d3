"""Models for programs without this package: weights in files, and whole programs; and weights read from files."""

import functools
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import unflatten_dict

from fedjax_bal.data import normalised
from fedjax_bal.engine.host import Result
from fedjax_bal.jax_setup import package_settings, start_jax
from fedjax_bal.lab.errors import FolderError, reading
from fedjax_bal.lab.model_files import MODEL_FORMATS, PROGRAM
from fedjax_bal.models import differentiable, named_leaves
from fedjax_bal.types import Array, Federation, Model, Names, Variables
from fedjax_bal.validate import one_of

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_WEIGHTS = ("npz", "safetensors")
_MOST_NAMED = 10  # inputs or classes in a message


class Inputs(NamedTuple):
    """The inputs that a model was trained on, before normalisation.

    Attributes:
        dtype: their type: "uint8" for bytes, a type of floats, or "int32" for token ids.
        mean: `Float[K]`, see `fedjax_bal.data.normalised`.
        std: `Float[K]`.
        names: F names of the columns of a table, in the order that the network expects; None for other inputs.
    """

    dtype: str
    mean: Any
    std: Any
    names: tuple[str, ...] | None = None


def inputs_of(federation: Federation) -> Inputs:
    """Returns the inputs of a federation."""
    dtype = np.dtype(federation.images.dtype).name
    return Inputs(dtype, np.asarray(federation.mean), np.asarray(federation.std), federation.input_names)


@functools.partial(jax.jit, static_argnames="model")
def logits_of(model: Model, variables: Variables, images: Array, mean: Array, std: Array) -> Array:
    """Computes the logits of inputs that aren't normalised."""
    with jax.default_matmul_precision("highest"):  # as evaluation does: GPUs round float32 products otherwise
        return model.apply(variables, normalised(images, mean, std), train=False)[0].logits


@package_settings()
def export_model(
    file: str | os.PathLike[str],
    model: Model | Result,
    variables: Variables | None = None,
    federation: Federation | None = None,
    *,
    class_names: Sequence[str] | None = None,
    kind: str | None = None,
) -> Path:
    """Writes a model to a file for programs without this package, as `fedjax-bal export` does.

    npz, safetensors and Orbax have one array for each array of the model, named like `params/head/dense/kernel`, and
    need the network's layers in the other program. StableHLO has the whole program, weights included, for the CPU, for
    NVIDIA's and AMD's GPUs and for TPUs: an npz file with its bytes, `program`, which takes any number of inputs as the
    federation has them, and returns logits `Float32[B, C]`. All have a JSON text `about` (safetensors: in the
    metadata; Orbax: an item) with the inputs, their mean and standard deviation, `class_names` in the order of the
    logits, and `input_names`, the columns of a table in the order that the network expects; of categories, `sex=F` is 1
    where the column `sex` holds `F`, and 0 elsewhere.

    Args:
        file: the file, or the folder for Orbax.
        model: what `simulate` returned; or a network, with the method's additions.
        variables: the network's weights; left out for a `Result`, by default the `evaluated` ones.
        federation: the federation that it was trained on, whose inputs the model takes; by default the model takes
            normalised inputs.
        class_names: names of the classes, in the order of the logits; by default the federation's.
        kind: the format: "npz", "safetensors", "orbax" or "stablehlo"; by default the file's extension.

    Returns:
        The file.

    Raises:
        ValueError: variables are missing, the format is unknown, or its library isn't installed: orbax-checkpoint, or
            flatbuffers for StableHLO.
        OSError: the file can't be written.

    Example:
        >>> import tempfile
        >>> from fedjax_bal import models
        >>> model = models.build("mlp", 2, (4,), hidden=[3])
        >>> file = export_model(f"{tempfile.mkdtemp()}/model.npz", model, model.init(jax.random.key(0)))
        >>> sorted(np.load(file))[:3]
        ['about', 'params/body/dense_0/dense/bias', 'params/body/dense_0/dense/kernel']
        >>> load_weights(file).params["head"]["dense"]["kernel"].shape
        (3, 2)
    """
    if isinstance(model, Result):
        variables = model.evaluated if variables is None else variables
        model = model.model
    if not isinstance(model, Model) or variables is None:
        received = f"a {type(model).__name__} and {'no' if variables is None else 'its'} variables"
        raise ValueError(f"export_model: received {received}, must be a Result, or a Model and its Variables")
    if not isinstance(federation, Federation | None):
        raise ValueError(f"federation: received a {type(federation).__name__}, must be what data.federate returns")
    inputs = None if federation is None else inputs_of(federation)
    if class_names is None and federation is not None:
        class_names = federation.class_names
    return write_export(Path(file), kind, model, variables, inputs, {"class_names": list(class_names or ())})


def write_export(
    file: Path, kind: str | None, model: Model, variables: Variables, inputs: Inputs | None, about: Mapping[str, Any]
) -> Path:
    """Writes a model as `export_model` does; `about` is added to its description."""
    asked = f"the extension of {file} (or give a format)" if kind is None else "format"
    kind = one_of(asked, kind or file.suffix[1:], MODEL_FORMATS)
    if kind == "stablehlo":
        taken = Inputs(model.input_dtype, 0.0, 1.0) if inputs is None else inputs
        tensors = {PROGRAM: _program(model, variables, taken)}
        expected = f"{_typed(taken.dtype, model)}, {'normalised' if inputs is None else 'not normalised'}"
        expected = _tokens(model) or expected
    else:
        tensors = {name: np.asarray(leaf) for name, leaf in named_leaves(variables, "/").items()}
        expected = _tokens(model) or f"{_typed(model.input_dtype, model)}{_normalisation(model, inputs)}"
    description = {
        **about,
        "model": model.name,
        "model_options": dict(model.options),
        "input": expected,
        "input_shape": list(model.input_shape),
        **({"input_names": list(inputs.names)} if inputs is not None and inputs.names is not None else {}),
        "mean": None if inputs is None else np.asarray(inputs.mean).tolist(),
        "std": None if inputs is None else np.asarray(inputs.std).tolist(),
    }
    MODEL_FORMATS[kind].write(file, tensors, json.dumps(description, indent=1))
    return file


def _typed(dtype: str, model: Model) -> str:
    """Describes the type and shape of a model's inputs."""
    return f"{dtype.capitalize()} [{', '.join(map(str, ('batch', *model.input_shape)))}]"


def _tokens(model: Model) -> str:
    """Describes token ids; empty for other inputs."""
    if model.input_dtype != "int32":
        return ""
    return f"{_typed('int32', model)}: token ids{', 0 is padding' if model.name == 'text_mean' else ''}"


def _normalisation(model: Model, inputs: Inputs | None) -> str:
    """Describes what another program does with inputs before the network."""
    if inputs is None:
        return ", normalised"
    pixels = "bytes are divided by 255, then " if inputs.dtype == "uint8" else ""
    each = "channel by channel" if len(model.input_shape) == 3 else "feature by feature"
    return f": {pixels}mean is subtracted and the difference divided by std, {each}"


def _program(model: Model, variables: Variables, inputs: Inputs) -> np.ndarray:
    """Returns the bytes of a program from inputs to logits, for any number of inputs."""
    start_jax()
    # JAX's own operations, which run everywhere: the layers' fast forms may call the libraries of this machine.
    portable = differentiable(model)
    variables = jax.tree.map(np.asarray, variables)

    # Traced for a single input, so that no layer has to compute with an unknown number of them.
    def logits(image: Array) -> Array:
        return logits_of(portable, variables, image[None], inputs.mean, inputs.std)[0]

    (batch,) = jax.export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *model.input_shape), inputs.dtype)
    exported = jax.export.export(jax.jit(jax.vmap(logits)), platforms=_PLATFORMS)(images)
    try:
        return np.frombuffer(exported.serialize(), np.uint8)
    except ImportError as error:
        raise FolderError("format: stablehlo needs a library: pip install flatbuffers") from error


def load_weights(file: str | os.PathLike[str], federation: Federation | None = None) -> Variables:
    """Reads a model's weights from an npz or safetensors file; nothing is unpickled.

    Args:
        file: a file that `fedjax-bal export` or `export_model` has written; or one with arrays of the same names,
            `params/...`, and `stats/...` or `batch_stats/...` for running statistics.
        federation: what is to be trained from them. If the file names its inputs and classes, this warns of other names
            in the federation, or without one that nothing compares them.

    Returns:
        The weights as NumPy arrays, for `simulate(..., variables=...)` or `fedjax_bal.models.with_weights`.

    Raises:
        ValueError: the file can't be read, is damaged, of another format, has arrays of other names, or the federation
            has its inputs or classes in another order.
    """
    path = Path(file)
    variables, trained_on = read_weights(path)
    if federation is not None:
        remarks = compare_names(path, trained_on, federation.names or Names())
    elif trained_on.inputs or trained_on.classes:
        remarks = [f"{path}: has names of inputs or classes: load_weights(file, federation) compares them"]
    else:
        remarks = []
    for text in remarks:
        warnings.warn(text, stacklevel=2)
    return variables


def read_weights(path: Path) -> tuple[Variables, Names]:
    """Reads the weights of `load_weights`, and the names of inputs and classes that they were trained on."""
    kind = one_of(f"the extension of {path}", path.suffix[1:], _WEIGHTS)
    with reading(path, "export or save it again"):
        tensors, about = MODEL_FORMATS[kind].read(path)
        nested = unflatten_dict(dict(tensors), sep="/")
        inputs, classes = (tuple(map(str, about.get(key) or ())) for key in ("input_names", "class_names"))
    stats = [nested.pop(name) for name in ("stats", "batch_stats") if name in nested]
    if set(nested) != {"params"} or len(stats) > 1:
        others = sorted(name for name in tensors if name.partition("/")[0] not in ("params", "stats", "batch_stats"))
        raise FolderError(
            f"{path}: received arrays named {', '.join((others or sorted(tensors))[:3]) or 'nothing'}, must be named "
            "as in an exported model, params/... and stats/...; PyTorch's weights are converted by "
            "fedjax_bal.models.weights_from_torch"
        )
    return Variables(nested["params"], stats[0] if stats else {}), Names(classes, inputs)


def compare_names(path: Path, trained_on: Names, data: Names) -> list[str]:
    """Describes in which names of inputs and classes the data differ from those that weights were trained on.

    Raises:
        FolderError: the data have the same names in another order, so that the weights would be mixed up.
    """
    remarks = []
    for what, before, now in (
        ("inputs", trained_on.inputs, data.inputs), ("classes", trained_on.classes, data.classes)
    ):  # fmt: skip
        if before and now and before != now:
            names = [", ".join(each[:_MOST_NAMED]) + ", ..." * (len(each) > _MOST_NAMED) for each in (before, now)]
            if sorted(before) == sorted(now):
                raise FolderError(
                    f"{path}: was trained on the {what} {names[0]}; the data have them in another order, {names[1]}, "
                    f"and weights go by position: give the data the file's order of {what}, or train a new start"
                )
            remarks.append(f"{path}: was trained on the {what} {names[0]}; the data's {names[1]} take their places")
    return remarks
