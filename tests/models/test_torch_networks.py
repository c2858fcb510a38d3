"""Networks of PyTorch itself: equal predictions on raw inputs in both, and networks that would differ are refused."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from rounding import SUM

from fedjax_bal import LocalTraining, data, optimizer, recipes, simulate
from fedjax_bal.models import build, from_linen, from_nnx, weights_from_torch, weights_to_torch, with_weights

pytestmark = pytest.mark.slow  # PyTorch and its networks take seconds
torch = pytest.importorskip("torch")
tnn = torch.nn
SHAPE = (8, 6, 3)


class Net(nn.Module):
    """Batch, layer and group normalisation, dropout, pooling, flattened maps."""

    layer_epsilon: float = 1e-5
    group_epsilon: float = 1e-5
    padding: int = 1

    @nn.compact
    def __call__(self, images, train=False):
        maps = nn.Conv(4, (3, 3), padding=self.padding)(images)
        maps = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(maps))
        maps = nn.max_pool(maps, (2, 2), (2, 2))
        maps = nn.GroupNorm(2, epsilon=self.group_epsilon, use_fast_variance=False)(nn.Conv(4, (3, 3))(maps))
        rows = nn.Dropout(0.3, deterministic=not train)(maps.reshape(len(maps), -1))
        return nn.Dense(3)(nn.LayerNorm(epsilon=self.layer_epsilon, use_fast_variance=False)(nn.Dense(7)(rows)))


def network(padding=1, activation=tnn.ReLU, first=None, **epsilons):
    torch.manual_seed(0)
    net = tnn.Sequential(
        tnn.Conv2d(3, 4, 3, padding=padding),
        first or tnn.BatchNorm2d(4, eps=epsilons.get("batch", 1e-5)),
        activation(),
        tnn.MaxPool2d(2),
        tnn.Conv2d(4, 4, 3, padding=1),
        tnn.GroupNorm(2, 4, eps=epsilons.get("group", 1e-5)),
        tnn.Flatten(),
        tnn.Dropout(0.3),
        tnn.Linear(4 * 4 * 3, 7),
        tnn.LayerNorm(7, eps=epsilons.get("layer", 1e-5)),
        tnn.Linear(7, 3),
    )
    net.train()(torch.randn(20, 3, 8, 6) + 1)  # moves the running statistics
    return net


def in_torch(net, inputs):
    with torch.no_grad():
        return net.eval()(torch.from_numpy(np.ascontiguousarray(inputs))).numpy()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_there_and_back_both_predict_the_same_on_raw_inputs(dtype):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, *SHAPE)).astype(dtype)
    labels = np.arange(40) % 3
    net = network()
    model = from_linen(Net(), SHAPE, 3)
    weights = weights_from_torch(model, net)

    scale = 255 if dtype == np.uint8 else 1
    constants = {"mean": np.float32([0.5, 0.4, 0.6]) * 255 / scale, "std": np.float32([0.3, 0.2, 0.25]) * 255 / scale}
    federation = data.federate(images, labels, [np.arange(20), np.arange(20, 40)], 3, **constants)
    normalised = (images.astype(np.float32) / scale - constants["mean"]) / constants["std"]
    logits, _ = model.apply(weights, normalised, train=False)
    np.testing.assert_allclose(in_torch(net, np.moveaxis(normalised, -1, 1)), logits.logits, atol=SUM, rtol=SUM)

    local = LocalTraining(batch_size=10, optimizer=optimizer("sgd", 0.05))
    end = simulate(
        recipes.fedavg(), with_weights(model, weights), federation, (images, labels), rounds=2, seed=0, local=local
    )
    back = weights_to_torch(model, end.variables, net, federation=federation)
    mean, std = back.pop("mean"), back.pop("std")
    net.load_state_dict({name: torch.from_numpy(array) for name, array in back.items()})
    raw = np.moveaxis(images, -1, 1).astype(np.float32)
    wanted = model.apply(end.variables, normalised, train=False)[0].logits
    assert abs(np.asarray(wanted - logits.logits)).max() > 0.01  # training has changed the network
    np.testing.assert_allclose(in_torch(net, (raw - mean) / std), wanted, atol=SUM, rtol=SUM)


def test_weights_go_back_only_into_a_network_that_computes_the_same():
    model = build("mlp", 6, (6,), hidden=[6])
    variables = model.init(jax.random.key(0))
    right = tnn.Sequential(tnn.Linear(6, 6), tnn.ReLU(), tnn.Linear(6, 6))
    assert len(weights_to_torch(model, variables, right, federation=None)) == 4

    class Turned(tnn.Module):
        """Layers of one shape, registered in another order than that in which they compute."""

        def __init__(self):
            super().__init__()
            self.out, self.first = tnn.Linear(6, 6), tnn.Linear(6, 6)

        def forward(self, inputs):
            return self.out(torch.relu(self.first(inputs)))

    for net in (Turned(), tnn.Sequential(tnn.Linear(6, 6), tnn.Tanh(), tnn.Linear(6, 6))):
        with pytest.raises(ValueError, match="like: received a network .* gives results on random inputs that differ"):
            weights_to_torch(model, variables, net, federation=None)


def test_mean_and_std_have_to_be_taken_out():
    net = tnn.Sequential(tnn.Linear(4, 3), tnn.ReLU(), tnn.Linear(3, 2))
    model = build("mlp", 2, (4,), hidden=[3])
    federation = data.federate(np.zeros((2, 4), np.float32), np.array([0, 1]), [[0, 1]], 2)
    back = weights_to_torch(model, weights_from_torch(model, net), net, federation=federation)
    with pytest.raises(RuntimeError, match='Unexpected key.*"mean", "std"'):
        net.load_state_dict({name: torch.from_numpy(array) for name, array in back.items()})


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: network(batch=1e-3), r"received eps=0.001 of 1 \(BatchNorm2d\)"),
        (lambda: network(group=1e-6), r"received eps=1e-06 of 5 \(GroupNorm\)"),
        (lambda: network(layer=1e-6), r"received eps=1e-06 of 9 \(LayerNorm\)"),
        (lambda: network(first=tnn.BatchNorm2d(4, track_running_stats=False)), "received bias, weight for 1"),
        (lambda: network(first=tnn.InstanceNorm2d(4, affine=True)), "received bias, weight for 1"),
        (
            lambda: network(first=tnn.InstanceNorm2d(4, affine=True, track_running_stats=True), activation=tnn.Tanh),
            "gives results on random inputs that differ",
        ),
        (
            lambda: network(activation=tnn.LeakyReLU),
            "gives results on random inputs that differ by .* compare activations",
        ),
    ],
    ids=["batch", "group", "layer", "no statistics", "instance", "tanh", "leaky"],
)
def test_a_network_that_gives_other_results_is_refused(net, message):
    with pytest.raises(ValueError, match=message):
        weights_from_torch(from_linen(Net(), SHAPE, 3), net())


def test_flaxs_own_epsilons_are_refused_too():
    with pytest.raises(ValueError, match=r"eps=1e-05 of 9 \(LayerNorm\)"):
        weights_from_torch(from_linen(Net(layer_epsilon=1e-6), SHAPE, 3), network())
    weights_from_torch(from_linen(Net(layer_epsilon=1e-6), SHAPE, 3), network().state_dict())  # shows no epsilons


class Strided(nn.Module):
    padding: str | int = "SAME"

    @nn.compact
    def __call__(self, images):
        return nn.Dense(3)(nn.relu(nn.Conv(4, (5, 5), strides=2, padding=self.padding)(images)).mean((1, 2)))


def test_another_padding_is_refused():
    net = tnn.Sequential(
        tnn.Conv2d(3, 4, 5, stride=2, padding=2), tnn.ReLU(), tnn.AdaptiveAvgPool2d(1), tnn.Flatten(), tnn.Linear(4, 3)
    )
    with pytest.raises(ValueError, match="padding"):
        weights_from_torch(from_linen(Strided(), SHAPE, 3), net)
    weights_from_torch(from_linen(Strided(2), SHAPE, 3), net)


class Instances(nn.Module):
    """Instance and root-mean-square normalisation."""

    @nn.compact
    def __call__(self, images):
        maps = nn.InstanceNorm(epsilon=1e-5, use_fast_variance=False)(nn.Conv(4, (3, 3))(images))
        return nn.Dense(3)(nn.RMSNorm(epsilon=float(np.finfo(np.float32).eps))(nn.relu(maps).mean((1, 2))))


def test_instance_and_root_mean_square_normalisation_are_taken():
    net = tnn.Sequential(
        tnn.Conv2d(3, 4, 3, padding=1), tnn.InstanceNorm2d(4, affine=True), tnn.ReLU(), tnn.AdaptiveAvgPool2d(1),
        tnn.Flatten(), tnn.RMSNorm(4), tnn.Linear(4, 3),
    )  # fmt: skip
    weights_from_torch(from_linen(Instances(), SHAPE, 3), net)
    net[1] = tnn.GroupNorm(1, 4)
    with pytest.raises(ValueError, match="kinds of normalisation"):
        weights_from_torch(from_linen(Instances(), SHAPE, 3), net)


@pytest.mark.parametrize("name", ["tiny_bn", "resnet8"])
def test_epsilons_of_the_packages_networks_are_known(name):
    from fedjax_bal.models.pytorch import _layers

    if name == "tiny_bn":
        assert _layers(build(name, 3, SHAPE)).epsilons == pytest.approx([1e-5])
    else:
        assert _layers(build(name, 3, (8, 8, 3), norm="group")).epsilons == pytest.approx([1e-5] * 9)


def linear():
    torch.manual_seed(0)
    return tnn.Sequential(tnn.Linear(6, 5), tnn.ReLU(), tnn.Linear(5, 4))


TAKEN = {
    "parameters with gradients": lambda net: dict(net.named_parameters()),
    "bfloat16": lambda net: net.to(torch.bfloat16).state_dict(),
    "float16": lambda net: net.half().state_dict(),
    "float64": lambda net: net.double().state_dict(),
    "float8": lambda net: {name: value.to(torch.float8_e4m3fn) for name, value in net.state_dict().items()},
    "a network of few bits": lambda net: net.to(torch.bfloat16),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_tensors_of_each_kind_become_float32(kind):
    model = build("mlp", 4, (6,), hidden=[5])
    state = TAKEN[kind](linear())
    weights = weights_from_torch(model, state)
    arrays = state.state_dict() if kind == "a network of few bits" else state
    wanted = arrays["2.weight"].detach().float().numpy().T
    np.testing.assert_array_equal(weights.params["head"]["dense"]["kernel"], wanted, strict=True)
    back = weights_to_torch(model, weights, state, federation=None)
    np.testing.assert_array_equal(back["2.weight"], wanted.T, strict=True)


REFUSED = {
    "sparse": lambda weight: weight.to_sparse(),
    "compressed": lambda weight: weight.to_sparse_csr(),
    "without numbers": lambda weight: weight.to("meta"),
    "quantised": lambda weight: torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8),
    "complex": lambda weight: weight.to(torch.complex64),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.filterwarnings("ignore:.*(Sparse|quantiz|deprecated)")
def test_tensors_without_dense_numbers_are_refused_by_name(kind):
    state = linear().state_dict()
    state["2.weight"] = REFUSED[kind](state["2.weight"])
    with pytest.raises(ValueError, match="state: received 2.weight, a tensor of torch"):
        weights_from_torch(build("mlp", 4, (6,), hidden=[5]), state)


def test_a_network_of_pytorch_is_no_module_of_flax():
    from fedjax_bal import check_model

    calls = [
        lambda: from_linen(linear(), (6,), 4),
        lambda: from_nnx(linear(), (6,), 4),
        lambda: from_nnx(tnn.Linear, (6,), 4),
        lambda: check_model(linear()),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match="received (Sequential|Linear), a module of PyTorch, .*guide own_network"
        ) as error:
            call()
        assert "in_features" not in str(error.value)


def test_a_network_that_does_not_take_the_models_inputs():
    class Picky(tnn.Sequential):
        def forward(self, rows):
            raise RuntimeError("takes a dictionary")

    net = Picky(tnn.Linear(6, 5), tnn.ReLU(), tnn.Linear(5, 4))
    with pytest.raises(ValueError, match=r"fails with inputs of shape \[4, 6\]: takes a dictionary"):
        weights_from_torch(build("mlp", 4, (6,), hidden=[5]), net)
