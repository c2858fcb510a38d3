"""Models by name."""

import difflib
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_bal.checks import is_number
from fedjax_bal.models import convolution as convolutions
from fedjax_bal.models import initialization, networks
from fedjax_bal.models.cifar_networks import FlcirCnn, KerasCifar10, Vgg9
from fedjax_bal.models.layers import Convolution, Linear
from fedjax_bal.models.mobilenet import MobileNetV2
from fedjax_bal.models.networks import Network
from fedjax_bal.models.resnet import ResNet, he_normal_of_outputs
from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables


class _Entry(NamedTuple):
    """What the registry knows of a network.

    Attributes:
        description: one line.
        body: `body(convolve, **options)`.
        smallest: the side of the smallest image that it takes, in pixels.
        options: names of its options.
        head_bias: whether its classifier has a bias.
        start: what its weights start as.
        batch_normalised: whether it normalises batches.
    """

    description: str
    body: Callable[..., nn.Module]
    smallest: int
    options: tuple[str, ...] = ()
    head_bias: bool = True
    start: initialization.Start = initialization.as_drawn
    batch_normalised: bool = False


def _mlp(convolve: Convolution, hidden: tuple[int, ...] = (64,)) -> nn.Module:
    del convolve
    if not hidden or any(not isinstance(units, int) or units < 1 for units in hidden):
        raise ValueError(f"models.build('mlp'): hidden={hidden!r} must be one or more whole numbers of at least 1.")
    return networks.Mlp(tuple(hidden))


def _fedavg_cnn(convolve: Convolution, conv_relu: bool = True) -> nn.Module:
    if not isinstance(conv_relu, bool):
        raise ValueError(f"models.build('fedavg_cnn'): conv_relu={conv_relu!r} must be True or False.")
    return networks.FedavgCnn(convolve, conv_relu)


def _dropping(
    name: str, network: type[networks.AstraeaCnn] | type[Vgg9] | type[KerasCifar10]
) -> Callable[..., nn.Module]:
    """What builds a network that has dropout, with the option `dropout`: one share for all of it, or one for each."""
    shares = network.dropout

    def body(convolve: Convolution, dropout: Any = shares) -> nn.Module:
        given = tuple(dropout) if isinstance(dropout, list | tuple) else (dropout,) * len(shares)
        if len(given) != len(shares) or not all(is_number(share) and 0 <= share < 1 for share in given):
            several = f", or {len(shares)} of them" if len(shares) > 1 else ""
            raise ValueError(f"models.build({name!r}): dropout={dropout!r} must be a number in [0, 1){several}.")
        return network(convolve, tuple(float(share) for share in given))

    return body


_ENTRIES = {
    "mlp": _Entry("flatten, dense 64, dense C; hidden=(64,) sets the hidden layers", _mlp, 1, ("hidden",)),
    "rebafl_fmnist": _Entry("ReBaFL's Fashion-MNIST net: conv 16, conv 32, dense 128", networks.RebaflFmnist, 12),
    "rebafl_cifar": _Entry(
        "ReBaFL's CIFAR-10 net: conv 16, conv 32, conv 64, dense 128, last layer without bias",
        networks.RebaflCifar,
        16,
        head_bias=False,
    ),
    "fedavg_cnn": _Entry(
        "McMahan's MNIST net: conv 32, conv 64, dense 512; conv_relu=False leaves out the ReLU behind the convolutions",
        _fedavg_cnn,
        4,
        ("conv_relu",),
    ),
    "astraea_cnn": _Entry(
        "Astraea's character net: conv 12, conv 18, conv 24, dense 150; dropout=0.5 sets the share dropped",
        _dropping("astraea_cnn", networks.AstraeaCnn),
        13,
        ("dropout",),
    ),
    "vgg9": _Entry(
        "IWDS's CIFAR-10 net: six convs of 32 to 256, dense 512, dense 512; dropout=(0.05, 0.1, 0.1) sets the shares "
        "dropped: whole channels, values, features",
        _dropping("vgg9", Vgg9),
        8,
        ("dropout",),
    ),
    "flcir_cnn": _Entry(
        "FL-CIR's CIFAR-10 net: conv 32, conv 64, conv 64, dense 64",
        FlcirCnn,
        18,
        start=initialization.he_fan_out,
    ),
    "keras_cifar10": _Entry(
        "Keras's CIFAR-10 net, Astraea's for CINIC-10: two convs of 32, two of 64, dense 512; "
        "dropout=(0.25, 0.25, 0.5) sets the shares dropped",
        _dropping("keras_cifar10", KerasCifar10),
        10,
        ("dropout",),
        start=initialization.glorot,
    ),
    "conv2_pfl": _Entry("pfl-research's CIFAR-10 net: conv 32, conv 64, dense 128", networks.Conv2Pfl, 4),
    "conv2_lenet": _Entry("LeNet-like: conv 16, conv 32, dense 128", networks.Conv2Lenet, 4),
    "resnet8": _Entry(
        "ResNet-8: resnet20 with one residual unit a stage",
        functools.partial(ResNet, units=1),
        1,
        batch_normalised=True,
    ),
    "resnet20": _Entry("ResNet-20 with batch normalisation and projection shortcuts", ResNet, 1, batch_normalised=True),
    "mobilenetv2": _Entry(
        "MobileNetV2 for 32x32 images, with batch normalisation", MobileNetV2, 1, batch_normalised=True
    ),
    "resnet18": _Entry(
        "ResNet-18 for 224x224 images, with batch normalisation and projection shortcuts",
        functools.partial(ResNet, channels=(64, 128, 256, 512), units=2, large=True, start=he_normal_of_outputs),
        32,
        batch_normalised=True,
    ),
    "tiny_bn": _Entry(
        "conv 4, batch normalisation, dense C: for tests and demos", networks.TinyBn, 2, batch_normalised=True
    ),
}

MODELS = {name: entry.description for name, entry in _ENTRIES.items()}
"""What can be built: name -> one line."""

BATCH_NORMALISED = tuple(name for name, entry in _ENTRIES.items() if entry.batch_normalised)
"""The models with batch normalisation."""


def build(
    name: str,
    num_classes: int,
    input_shape: tuple[int, int, int],
    *,
    convolution: str = "fast",
    **options: Any,
) -> Model:
    """Build a model by name.

    Args:
        name: one of `MODELS`.
        num_classes: C.
        input_shape: `(H, W, K)`, height and width in pixels, then channels.
        convolution: "fast", or "plain" for JAX's own, which is slower but has second derivatives; on a CPU to be used
            with one device, as XLA's convolution may return wrong numbers when two use it at a time.
        **options: what the model's description names.

    Returns:
        The model as pure functions. Its classifier's parameters are `params["head"]`; `norm_inputs` come in the order
        in which `jax.tree` goes through `stats`.

    Raises:
        ValueError: for an unknown name, convolution or option, or an input that is too small for the network.

    Example:
        >>> model = build("rebafl_fmnist", 10, (28, 28, 1))
        >>> variables = model.init(jax.random.key(0))
        >>> outputs, variables = model.apply(variables, jnp.zeros((2, 28, 28, 1)), train=False)
        >>> outputs.logits.shape, outputs.features.shape
        ((2, 10), (2, 128))
    """
    entry = _entry(name)
    _check(name, entry, num_classes, input_shape, options)
    body = entry.body(convolutions.of_name(convolution), **options)
    network = Network(body, Linear(num_classes, entry.head_bias))
    return Model(*_pure_functions(network, tuple(input_shape), entry.start), name, num_classes, input_shape)


def num_params(model: Model) -> int:
    """Number of trainable parameters, without computing any.

    Args:
        model: the model.

    Returns:
        The number; running statistics do not count.

    Example:
        >>> num_params(build("rebafl_fmnist", 10, (28, 28, 1)))
        117066
    """
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


# Programs are compiled for a model's functions: where they are the same ones, the program is the same one.
@functools.lru_cache(maxsize=64)
def _pure_functions(
    network: Network, input_shape: tuple[int, int, int], start: initialization.Start
) -> tuple[Callable, Callable, Callable]:
    """A network's `init`, `apply` and `head`."""
    drops = any(getattr(network.body, "dropout", ()))

    def init(key: Key) -> Variables:
        collections = network.init(key, jnp.zeros((1, *input_shape)), None, train=False)
        return Variables(start(key, collections["params"]), collections.get("stats", {}))

    def apply(
        variables: Variables, images: Array, *, train: bool, key: Key | None = None, real: Array | None = None
    ) -> tuple[Outputs, Variables]:
        collections = {"params": variables.params, "stats": variables.stats}
        if train and key is None and drops:
            raise ValueError("This model drops features in training: give apply a key, as in key=jax.random.key(0).")
        mutable = ["norm_inputs", "taps", "stats"] if train else ["norm_inputs", "taps"]
        rngs = None if key is None else {"dropout": key}
        (logits, features), changed = network.apply(collections, images, real, train=train, mutable=mutable, rngs=rngs)
        taps = tuple(jax.tree.leaves(changed.get("taps", {})))
        outputs = Outputs(logits, features, taps, _pairs(changed.get("norm_inputs", {})))
        return outputs, variables._replace(stats=changed.get("stats", variables.stats))

    def head(params: PyTree, features: Array) -> Array:
        return jnp.asarray(network.apply({"params": params}, features, method=Network.classify))

    # Called by itself, a network is one program instead of one for each operation; in a larger one it leaves no trace.
    return jax.jit(init, inline=True), jax.jit(apply, inline=True, static_argnames="train"), head


def _pairs(recorded: PyTree) -> tuple[tuple[Array, Array], ...]:
    """Mean and variance of each layer, in the order of the tree; flax records each in a tuple of one."""
    return sum(jax.tree.leaves(recorded, is_leaf=lambda node: isinstance(node, tuple)), ())


def _entry(name: str) -> _Entry:
    """The entry of a name."""
    if name not in _ENTRIES:
        nearest = difflib.get_close_matches(str(name), _ENTRIES, 1, 0.0)[0]
        raise ValueError(f"model {name!r} is unknown; did you mean {nearest!r}? Models: {', '.join(_ENTRIES)}.")
    return _ENTRIES[name]


def _check(name: str, entry: _Entry, num_classes: int, input_shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """Raise for arguments that no network, or not this one, can take."""
    unknown = sorted(set(options) - set(entry.options))
    if unknown:
        allowed = ", ".join(entry.options) or "none"
        raise ValueError(f"model {name!r} has no option {unknown[0]!r}; its options: {allowed}.")
    if num_classes < 1:
        raise ValueError(f"model {name!r}: num_classes={num_classes} must be at least 1.")
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(
            f"model {name!r}: input_shape={input_shape} must be (height, width, channels), each at least 1."
        )
    if min(input_shape[:2]) < entry.smallest:
        raise ValueError(
            f"model {name!r}: images of {input_shape[0]}x{input_shape[1]} pixels are too small, it needs at least "
            f"{entry.smallest}x{entry.smallest}: use larger images or another model."
        )
