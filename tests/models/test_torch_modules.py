"""PyTorch modules as models: the same results, gradients and running statistics as in PyTorch, and back."""

import copy

import jax
import numpy as np
import pytest
from rounding import STEPS, SUM

from fedjax_bal import Execution, LocalTraining, check_model, data, optimizer, recipes, simulate
from fedjax_bal.models import from_torch, normalises, num_params, weights_from_torch, weights_to_torch
from fedjax_bal.models.weights import named_leaves
from fedjax_bal.types import Variables

pytestmark = pytest.mark.slow  # PyTorch and its tracer take seconds
torch = pytest.importorskip("torch")
tnn = torch.nn
SHAPE = (8, 6, 3)
CLASSES = 3


class Residual(tnn.Module):
    """A residual unit with batch normalisation, whose shortcut is declared before the layers that run before it."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.shortcut = tnn.Sequential(tnn.Conv2d(inputs, outputs, 1, stride, bias=False), tnn.BatchNorm2d(outputs))
        self.first = tnn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = tnn.BatchNorm2d(outputs, momentum=0.3, eps=1e-3)
        self.second = tnn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = tnn.BatchNorm2d(outputs)
        self.relu = tnn.ReLU(inplace=True)

    def forward(self, maps):
        out = self.bn2(self.second(self.relu(self.bn1(self.first(maps)))))
        out += self.shortcut(maps)
        return self.relu(out)


class ResNet(tnn.Module):
    def __init__(self, drop=0.0):
        super().__init__()
        self.stem = tnn.Conv2d(3, 4, 3, padding=1)
        self.pool = tnn.MaxPool2d(3, 2, 1)
        self.stages = tnn.Sequential(Residual(4, 6, 2))
        self.drop = tnn.Dropout(drop)
        self.fc = tnn.Linear(6, CLASSES)

    def forward(self, images):
        maps = self.stages(self.pool(torch.relu(self.stem(images))))
        return self.fc(self.drop(torch.flatten(tnn.functional.adaptive_avg_pool2d(maps, 1), 1)))


class Flat(tnn.Module):
    """Maps that are flattened with their channels first, shape-dependent control flow, a log_softmax."""

    def __init__(self):
        super().__init__()
        self.conv1 = tnn.Sequential(tnn.Conv2d(3, 4, 3), tnn.ReLU(inplace=True), tnn.MaxPool2d((2, 2)))
        self.scale = tnn.Parameter(torch.rand(4, 1, 1))
        self.fc1 = tnn.Sequential(tnn.Linear(24, 8), tnn.GroupNorm(2, 8), tnn.LayerNorm(8), tnn.LeakyReLU())
        self.unused = tnn.Linear(2, 2)
        self.frozen = tnn.Linear(8, 7).requires_grad_(False)
        self.fc = tnn.Linear(7, CLASSES)

    def forward(self, images):
        if images.ndim != 4:
            raise ValueError("no images")
        maps = self.conv1(images) * self.scale
        rows = self.frozen(self.fc1(maps.view(maps.size(0), -1)))
        return tnn.functional.log_softmax(self.fc(rows), dim=1)


class Tokens(tnn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = tnn.Embedding(9, 4, padding_idx=0)
        self.encoder = tnn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.fc = tnn.Linear(4, CLASSES)

    def forward(self, ids):
        return self.fc(self.encoder(self.embedding(ids)).mean(1))


class Series(tnn.Module):
    def __init__(self):
        super().__init__()
        self.conv = tnn.Conv1d(2, 4, 3, stride=2, padding=1)
        self.bn = tnn.BatchNorm1d(4)
        self.pool = tnn.MaxPool1d(2)
        self.lstm = tnn.LSTM(4, 5, batch_first=True)
        self.fc = tnn.Linear(5, CLASSES)

    def forward(self, series):
        rows = self.pool(torch.relu(self.bn(self.conv(series)))).transpose(1, 2)
        return self.fc(self.lstm(rows)[0][:, -1])


class Tied(tnn.Module):
    """Token ids whose embedding is the classifier's matrix, and a layer that is used twice, under two names."""

    def __init__(self):
        super().__init__()
        self.embedding = tnn.Embedding(CLASSES, 4)
        self.again = self.once = tnn.Linear(4, 4)
        self.fc = tnn.Linear(4, CLASSES)
        self.fc.weight = self.embedding.weight

    def forward(self, ids):
        rows = self.embedding(ids.clamp(max=CLASSES - 1)).mean(1)
        return self.fc(torch.tanh(self.again(torch.tanh(self.once(rows)))))


MODULES = {
    "tied": (Tied, (5,), int),
    "residual": (ResNet, SHAPE, None),
    "flat": (Flat, SHAPE, None),
    "tokens": (Tokens, (5,), int),
    "series": (Series, (2, 16), None),
}


def made(name):
    make, shape, dtype = MODULES[name]
    torch.manual_seed(0)
    net = make()
    return net, from_torch(net, shape, CLASSES, dtype=dtype)


def batch(model, rows=6):
    rng = np.random.default_rng(1)
    if model.input_dtype == "int32":
        return rng.integers(0, 9, (rows, *model.input_shape))
    return rng.standard_normal((rows, *model.input_shape), np.float32)


def as_tensor(inputs):
    return torch.from_numpy((np.moveaxis(inputs, -1, 1) if inputs.ndim == 4 else inputs).copy())


def load(net, back):
    net.load_state_dict({name: torch.from_numpy(array) for name, array in back.items()})


def test_an_id_beyond_an_embedding_gives_nan_where_pytorch_raises_an_error():
    _, model = made("tokens")
    ids = np.array([[1, 2, 3, 8, 0], [1, 2, 9, 3, 0], [1, 2, -1, 3, 0]])
    logits = model.apply(model.init(jax.random.key(0)), ids, train=False)[0].logits
    assert np.isnan(logits).any(1).tolist() == [False, True, True]


@pytest.mark.parametrize("name", MODULES)
def test_a_step_of_training_is_pytorchs(name):
    net, model = made(name)
    assert num_params(model) == sum(
        array.numel() for key, array in net.named_parameters() if array.requires_grad and "unused" not in key
    )
    inputs, labels = batch(model), np.arange(6) % CLASSES

    def loss(params, stats):
        outputs, after = model.apply(Variables(params, stats), inputs, train=True, key=jax.random.key(0))
        return -jax.nn.log_softmax(outputs.logits)[np.arange(6), labels].mean(), after.stats

    variables = model.init(jax.random.key(0))
    slopes, stats = jax.jit(jax.grad(loss, has_aux=True))(*variables)
    stepped = Variables(jax.tree.map(lambda old, slope: old - 0.1 * slope, variables.params, slopes), stats)

    theirs = copy.deepcopy(net).train()
    step = torch.optim.SGD(theirs.parameters(), 0.1)
    tnn.functional.cross_entropy(theirs(as_tensor(inputs)), torch.from_numpy(labels)).backward()
    step.step()
    back = weights_to_torch(model, stepped, net, federation=None)
    assert any((back[key] != array.numpy()).any() for key, array in net.state_dict().items())
    for key, array in theirs.state_dict().items():
        if "num_batches_tracked" not in key:
            np.testing.assert_allclose(back[key], array.numpy(), rtol=STEPS, atol=STEPS, err_msg=key)

    load(theirs, back)
    with torch.no_grad():
        wanted = theirs.eval()(as_tensor(inputs)).numpy()
    logits = model.apply(stepped, inputs, train=False)[0].logits
    np.testing.assert_allclose(jax.nn.log_softmax(logits), jax.nn.log_softmax(wanted), rtol=STEPS, atol=STEPS)


def test_a_residual_network_trains_here_and_goes_back_with_its_normalisation():
    net, model = made("residual")
    net_before = copy.deepcopy(net.state_dict())
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (40, *SHAPE)).astype(np.uint8), np.arange(40) % CLASSES
    federation = data.federate(images, labels, [np.arange(20), np.arange(20, 40)], CLASSES)
    local = LocalTraining(batch_size=8, optimizer=optimizer("sgd", 0.05))
    end = simulate(recipes.fedavg(), model, federation, (images, labels), rounds=2, seed=0, local=local).variables

    back = weights_to_torch(model, end, net, federation=federation)
    with pytest.raises(RuntimeError, match='Unexpected key.*"mean", "std"'):
        load(net, back)
    mean, std = back.pop("mean"), back.pop("std")
    load(net, back)
    assert all(
        not torch.equal(net_before[key], array) for key, array in net.state_dict().items() if "tracked" not in key
    )
    raw = np.moveaxis(images, -1, 1).astype(np.float32)
    with torch.no_grad():
        predicted = net.eval()(torch.from_numpy((raw - mean) / std)).numpy()
    inputs = data.normalised(jax.numpy.asarray(images), federation.mean, federation.std)
    np.testing.assert_allclose(predicted, model.apply(end, inputs, train=False)[0].logits, rtol=1e-4, atol=1e-4)

    again = weights_from_torch(model, net)
    jax.tree.map(np.testing.assert_array_equal, again, jax.device_get(end))


@pytest.mark.parametrize("name", ["residual", "flat"])
def test_every_check_of_models_passes(name):
    check_model(from_torch(ResNet(drop=0.5), SHAPE, CLASSES) if name == "residual" else made(name)[1])


def test_methods_find_classifier_and_normalisation():
    _, model = made("residual")
    variables = model.init(jax.random.key(0))
    assert {name: leaf.shape for name, leaf in variables.params["head"].items()} == {
        "bias": (CLASSES,),
        "kernel": (6, CLASSES),
    }
    paths = jax.tree_util.tree_leaves_with_path(variables.params)
    found = {jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths if any(map(normalises, path))}
    assert found == {
        f"body.stages.0.{layer}.norm.{kind}" for layer in ("bn1", "bn2", "shortcut.1") for kind in ("bias", "scale")
    }
    outputs, _ = model.apply(variables, batch(model), train=False)
    assert [mean.shape for mean, _ in outputs.norm_inputs] == [
        leaf.shape for name, leaf in named_leaves(variables.stats).items() if name.endswith("mean")
    ]


def test_padded_rows_never_enter_the_statistics():
    _, model = made("residual")
    variables, inputs = model.init(jax.random.key(0)), batch(model)
    real = np.arange(6) < 4
    _, padded = model.apply(variables, inputs, train=True, key=jax.random.key(0), real=real)
    _, alone = model.apply(variables, inputs[:4], train=True, key=jax.random.key(0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=SUM, atol=SUM), padded.stats, alone.stats)


def test_fresh_weights_depend_on_the_seed_and_have_the_modules_distribution():
    model = from_torch(made("residual")[0], SHAPE, CLASSES, init="fresh")
    one, same, other = (model.init(jax.random.key(seed)).params["head"]["kernel"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    np.testing.assert_array_equal(np.sort(np.ravel(one)), np.sort(np.ravel(other)))


def test_fewer_bits():
    _, model = made("residual")
    images, labels = np.zeros((8, *SHAPE), np.uint8), np.arange(8) % CLASSES
    federation = data.federate(images, labels, [np.arange(8)], CLASSES, mean=0.5, std=0.5)
    execution = Execution(precision="bfloat16")
    local = LocalTraining(batch_size=8)
    end = simulate(
        recipes.fedavg(), model, federation, (images, labels), rounds=1, seed=0, local=local, execution=execution
    )
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(end.variables)} == {"float32"}


class Counting(tnn.Linear):
    def __init__(self):
        super().__init__(6, CLASSES)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, rows):
        self.calls = self.calls + 1
        return super().forward(rows)


class Branching(tnn.Linear):
    def forward(self, rows):
        return super().forward(rows if rows.sum() > 0 else -rows)


class Several(tnn.Linear):
    def forward(self, rows):
        return super().forward(rows), rows


class OneSize(tnn.Linear):
    def forward(self, rows):
        return super().forward(rows.view(3, 6))


class Twice(tnn.Sequential):
    def __init__(self):
        super().__init__(tnn.BatchNorm1d(6), tnn.Linear(6, CLASSES))

    def forward(self, rows):
        return self[1](self[0](self[0](rows)))


def sequence(*layers):
    return tnn.Sequential(tnn.Linear(6, 4), *layers, tnn.Linear(4, CLASSES))


REFUSED = {
    "a class": (lambda: tnn.Linear, "must be a torch.nn.Module"),
    "lazy": (lambda: tnn.LazyLinear(CLASSES), "lazy layers .* call the module on a batch"),
    "control flow": (lambda: Branching(6, CLASSES), "test_torch_modules.py, line .* torch.where"),
    "inputs": (lambda: tnn.Linear(7, CLASSES), r"fails with inputs of shape \[3, 6\].*input_shape"),
    "size of the batch": (lambda: OneSize(6, CLASSES), "batches of one size"),
    "classes": (lambda: tnn.Linear(6, 4), r"shape \(1, 4\).*logits of shape \(1, 3\)"),
    "an operation": (
        lambda: sequence(tnn.Unflatten(1, (4, 1, 1)), tnn.AdaptiveMaxPool2d(1), tnn.Flatten()),
        "adaptive_max_pool2d of the layer 2, .*from_linen",
    ),
    "softmax": (lambda: tnn.Sequential(tnn.Linear(6, CLASSES), tnn.Softmax(1)), "softmax.* layer 1, .*leave out"),
    "several results": (lambda: Several(6, CLASSES), "tuple"),
    "a buffer": (Counting, "buffer calls"),
    "no statistics": (lambda: sequence(tnn.BatchNorm1d(4, track_running_stats=False)), "no_stats of the layer 1"),
    "statistics used twice": (
        lambda: sequence(*[tnn.BatchNorm1d(4)] * 2),
        "normalisation under two names, the second with 2.running_mean, .*a layer of its own",
    ),
    "a layer with statistics used twice": (Twice, "runs twice of the layer 0, .* a layer of its own"),
    "cumulative statistics": (lambda: sequence(tnn.BatchNorm1d(4, momentum=None)), "momentum=None"),
    "computed weights": (
        lambda: tnn.utils.parametrizations.weight_norm(tnn.Linear(6, CLASSES)), "whose weights are computed"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_translated_is_refused_by_name(name, capfd):
    make, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        from_torch(make(), (6,), CLASSES)
    assert capfd.readouterr() == ("", "")


def test_weights_of_another_module_are_refused_by_name():
    net, model = made("residual")
    state = net.state_dict() | {"fc.weight": torch.zeros(CLASSES, 5)}
    with pytest.raises(ValueError, match=r"received \[3, 5\] for fc.weight, where params.head.kernel .* has \[6, 3\]"):
        weights_from_torch(model, state)
    del state["fc.weight"]
    with pytest.raises(ValueError, match="received nothing for fc.weight"):
        weights_from_torch(model, state)
