"""Models by name, and their options, which are declared only in the signature of the network's builder."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from annotated_types import Ge

from fedjax_bal.annotations import Count, CountOrZero, Field, NonNegative, ParsedBy, check, parameters
from fedjax_bal.jax_setup import in_package_settings, start_jax
from fedjax_bal.models import convolution as convolutions
from fedjax_bal.models import layers, networks
from fedjax_bal.models.adapters import NO_KEY, moment_pairs
from fedjax_bal.models.layers import Convolution, Linear
from fedjax_bal.models.networks import Layer, MobileNetV2, Network, PlainCnn, ResNet, he_normal_of_outputs
from fedjax_bal.models.normalization import Normalisation, normalise
from fedjax_bal.registry import Registry
from fedjax_bal.types import Array, Key, Model, Outputs, PyTree, Variables
from fedjax_bal.validate import is_number, one_of, suggestion, whole_number

_RECORDED = ("levels", "norm_inputs", "taps")
"""The collections in which networks record results of a forward pass."""

# Parameters that `build` passes to a builder, and flax's own fields.
_NO_OPTIONS = ("num_classes", "input_shape", "convolution", "convolve", "parent", "name")


@functools.cache
def options_of(builder: Callable[..., Any]) -> Mapping[str, Field]:
    """Returns the options of a builder, type and default by name: its parameters that YAML can express."""
    return parameters(builder, skip=_NO_OPTIONS)


def read_options(name: str, options: Mapping[str, Field], given: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the given options of a model to the types that its network takes; raises `ValueError` for wrong ones."""
    for key in sorted(set(given) - set(options)):
        near = suggestion(key, options)
        hint = f"; {near}" if near else "."
        raise ValueError(f"model {name!r} has no option {key!r}; its options: {', '.join(options) or 'none'}{hint}")
    return {key: check(f"model {name!r}: {key}", options[key][0], value) for key, value in given.items()}


def shares(count: int) -> ParsedBy:
    """Fractions dropped by dropout: one number for all `count` places of a network, or one for each."""

    def read(value: Any) -> tuple[float, ...]:
        given = tuple(value) if isinstance(value, list | tuple) else (value,) * count
        if len(given) != count or not all(is_number(share) and 0 <= share < 1 for share in given):
            raise ValueError
        return tuple(map(float, given))

    return ParsedBy("a number in [0, 1)" + (f", or a list of {count} of them" if count > 1 else ""), read)


class _Entry(NamedTuple):
    """A network's entry in the registry."""

    description: str
    # body(**options), or body(convolve, **options) with convolutions; its signature declares the options, see
    # `options_of`.
    body: Callable[..., Any]
    smallest: int  # side of the smallest image that it takes, in pixels
    head_bias: bool = True
    start: layers.ReplaceParams = layers.as_drawn
    batch_normalised: bool = False
    ready: bool = False  # whether the body is `body(num_classes, input_shape, **options)` and returns a model
    any_shape: bool = False


def own_model(build: Callable[..., Model], description: str) -> _Entry:
    """Makes a registry entry for a function `build(num_classes, input_shape, **options)`."""
    return _Entry(description, build, 1, ready=True, any_shape=True)


def _mlp(hidden: tuple[Annotated[int, Ge(1)], ...] = (64,)) -> nn.Module:
    """Builds a multilayer perceptron.

    Args:
        hidden: the units of each hidden layer.
    """
    return networks.Mlp(hidden)


def _linear() -> nn.Module:
    """Builds multinomial logistic regression."""
    return networks.Mlp(())


def _text_mean(
    vocabulary: Annotated[int, Ge(2)] = 10_000, embedding: Count = 32, hidden: CountOrZero = 64
) -> nn.Module:
    """Builds a network for texts.

    Args:
        vocabulary: the number of token ids, which are below it.
        embedding: the length of a token's vector.
        hidden: the units of the hidden layer; 0 for none.
    """
    return networks.TextMean(vocabulary, embedding, hidden)


def _with_dropout(
    network: type[networks.AstraeaCnn | networks.Vgg9 | networks.KerasCifar10],
) -> Callable[..., nn.Module]:
    """Makes the builder of a network with the option `dropout`: one fraction for all its places, or one for each."""
    default = network.dropout

    def body(convolve: Convolution, dropout: Annotated[tuple[float, ...], shares(len(default))] = default) -> nn.Module:
        """Builds the network.

        Args:
            convolve: computes convolutions.
            dropout: the fraction that each dropout sets to 0, one number for all or one for each, in the order of the
                network; 0 for none.
        """
        return network(convolve, dropout)

    return body


def _normalised(description: str, network: Callable[..., nn.Module], smallest: int = 1, **settings: Any) -> _Entry:
    """Makes the entry of a network with fixed settings and the options `norm` and `standardise`."""

    def body(
        convolve: Convolution,
        norm: Literal["batch", "group"] = "batch",
        standardise: NonNegative = 0.0,
    ) -> nn.Module:
        """Builds the network.

        Args:
            convolve: computes convolutions.
            norm: batch or group normalisation.
            standardise: the standard deviation to which kernels are scaled, with mean 0, before they are used, such as
                0.001; 0 to use them as they are.
        """
        convolve = layers.standardising(convolve, standardise) if standardise else convolve
        return network(convolve, norm=functools.partial(normalise, norm), **settings)

    return _Entry(
        f"{description}; norm is batch or group; standardise, e.g. 0.001, is the deviation of standardised kernels",
        body,
        smallest,
        batch_normalised=True,
    )


def _plain(*layers: Layer, **settings: Any) -> Callable[..., nn.Module]:
    """Makes the builder of a `PlainCnn` without options."""
    return lambda convolve: PlainCnn(convolve, layers, **settings)


_RESNET18 = {"channels": (64, 128, 256, 512), "units": 2, "start": he_normal_of_outputs}
_ENTRIES = {
    "mlp": _Entry("flatten, hidden dense layers, dense C", _mlp, 1, any_shape=True),
    "linear": _Entry("flatten, dense C: multinomial logistic regression", _linear, 1, any_shape=True),
    "text_mean": _Entry(
        "for token ids: the mean of embeddings, one hidden dense layer (0: none, as in fastText), dense C; id 0 is "
        "padding, all are below vocabulary",
        _text_mean,
        1,
        any_shape=True,
    ),
    # Layers read in github.com/JianXu95/ReBaFL, without the projection, which only other methods use.
    "rebafl_fmnist": _Entry(
        "ReBaFL's Fashion-MNIST net: conv 16, conv 32, dense 128",
        _plain(Layer(16, 5, 0), Layer(32, 5, 1), features=128, activation=nn.leaky_relu, last=nn.leaky_relu),
        12,
    ),
    "rebafl_cifar": _Entry(
        "ReBaFL's CIFAR-10 net: conv 16, conv 32, conv 64, dense 128, last layer without bias",
        _plain(
            Layer(16, 5, 0),
            Layer(32, 5, 1),
            Layer(64, 3, 1),
            features=128,
            activation=nn.leaky_relu,
            last=lambda features: features,
        ),
        16,
        head_bias=False,
    ),
    "fedavg_cnn": _Entry(
        "McMahan's MNIST net: conv 32, conv 64, dense 512; conv_relu says whether ReLU follows the convolutions",
        networks.fedavg_cnn,
        4,
    ),
    # Layers as `FedAvgCNN` in github.com/TsingZ0/PFLlib and github.com/KarhouTam/FL-bench.
    "pfllib_cnn": _Entry(
        "PFLlib's and FL-bench's net: fedavg_cnn without padding",
        _plain(Layer(32, 5, 0), Layer(64, 5, 0), features=512),
        16,
    ),
    "astraea_cnn": _Entry(
        "Astraea's character net: conv 12, conv 18, conv 24, dense 150; dropout between the last two convolutions",
        _with_dropout(networks.AstraeaCnn),
        13,
    ),
    "vgg9": _Entry(
        "IWDS's CIFAR-10 net: six convs of 32 to 256, dense 512, dense 512; dropout of whole channels, of values, of "
        "features",
        _with_dropout(networks.Vgg9),
        8,
    ),
    # Layers as "ToyCifarNet" in github.com/ym1231/fl-cir.
    "flcir_cnn": _Entry(
        "FL-CIR's CIFAR-10 net: conv 32, conv 64, conv 64, dense 64",
        _plain(Layer(32, 3, 0), Layer(64, 3, 0), Layer(64, 3, 0, pooled=False), features=64),
        18,
        start=layers.he_fan_out,
    ),
    "keras_cifar10": _Entry(
        "Keras's CIFAR-10 net, Astraea's for CINIC-10: two convs of 32, two of 64, dense 512; dropout after each block "
        "and of the features",
        _with_dropout(networks.KerasCifar10),
        10,
        start=layers.glorot,
    ),
    # The CIFAR-10 benchmark of Granqvist et al., "pfl-research", NeurIPS 2024 Datasets and Benchmarks.
    "conv2_pfl": _Entry(
        "pfl-research's CIFAR-10 net: conv 32, conv 64, dense 128",
        _plain(Layer(32, 3, "SAME", pooled=False), Layer(64, 3, 0), features=128),
        4,
    ),
    "conv2_lenet": _Entry(
        "LeNet-like: conv 16, conv 32, dense 128", _plain(Layer(16, 5, "SAME"), Layer(32, 5, "SAME"), features=128), 4
    ),
    # Layers as in github.com/Xtra-Computing/NIID-Bench.
    "simple_cnn": _Entry(
        "NIID-Bench's net: conv 6, conv 16, dense 120, dense 84",
        _plain(Layer(6, 5, 0), Layer(16, 5, 0), hidden=(120,), features=84),
        16,
    ),
    "resnet8": _normalised("ResNet-8: resnet20 with one residual unit a stage", ResNet, units=1),
    "resnet20": _normalised("ResNet-20 with projection shortcuts", ResNet),
    # Layers and start as in github.com/shangxinyi/CReFF-FL.
    "creff_resnet8": _normalised(
        "CReFF's ResNet-8, with 64, 128 and 256 channels",
        ResNet,
        channels=(64, 128, 256),
        units=1,
        start=he_normal_of_outputs,
    ),
    "mobilenetv2": _normalised("MobileNetV2 for 32x32 images", MobileNetV2),
    "resnet18": _normalised(
        "ResNet-18 for 224x224 images, with projection shortcuts", ResNet, 32, large=True, **_RESNET18
    ),
    "resnet18_cifar": _normalised(
        "ResNet-18 for 32x32 images, its first convolution 3x3 and without pooling", ResNet, **_RESNET18
    ),
    "tiny_bn": _Entry(
        "conv 4, batch normalisation, dense C: for tests and demos", networks.TinyBn, 2, batch_normalised=True
    ),
}

MODELS = Registry(_ENTRIES)
"""Every model by name."""

BATCH_NORMALISED = tuple(name for name, entry in _ENTRIES.items() if entry.batch_normalised)
"""The models with batch normalisation, unless their option `norm` says otherwise."""


def options(name: str) -> Mapping[str, Field]:
    """Returns the type and default of a model's options, by name; raises `ValueError` for an unknown model.

    Example:
        >>> options("vgg9")["dropout"][1], sorted(options("mlp"))
        ((0.05, 0.1, 0.1), ['hidden'])
    """
    return options_of(_entry(name).body)


def normalisation(name: str, given: Mapping[str, Any]) -> Normalisation | None:
    """Returns the normalisation of a model with options, without building it; None for a user's model.

    Example:
        >>> normalisation("resnet8", {"norm": "group"}), normalisation("mlp", {})
        (Normalisation(layers=True, statistics=False), Normalisation(layers=False, statistics=False))
    """
    entry = _entry(name)
    layers = entry.batch_normalised
    return None if entry.ready else Normalisation(layers, layers and given.get("norm", "batch") == "batch")


def convolves(name: str) -> bool:
    """Tells whether a model has convolutions, so that the choice of their form matters.

    Example:
        >>> convolves("resnet8"), convolves("mlp")
        (True, False)
    """
    return bool({"convolve", "convolution"} & set(inspect.signature(_entry(name).body).parameters))


def build(
    name: str, num_classes: int, input_shape: tuple[int, ...], *, convolution: str = "auto", **options: Any
) -> Model:
    """Builds a model by name.

    Args:
        name: one of `MODELS`.
        num_classes: C.
        input_shape: `(H, W, K)`, height and width in pixels, then channels; for "mlp" and
            "text_mean" any shape, which they flatten.
        convolution: "auto" for the best that the machine can run, which is "builtin" on CPUs that can (see
            `fedjax_bal.models.convolution.automatic`) and "fast" elsewhere; "fast", in XLA, the same on all machines;
            "builtin", through jaxlib's own oneDNN; or "plain" for JAX's own, which is slower but has second
            derivatives. On CPUs use "plain" only with a single device: XLA's convolution may return wrong numbers if
            two devices use it at the same time.
        **options: options that `options(name)` lists, for instance `hidden=(128,)` for "mlp".

    Returns:
        The model as pure functions. Its classifier's parameters are `params["head"]`; `norm_inputs` are in the order of
        the leaves of `stats` in `jax.tree`.

    Raises:
        ValueError: an unknown name, convolution or option, a value that an option can't have, or an input that is too
            small for the network.

    Example:
        >>> model = build("rebafl_fmnist", 10, (28, 28, 1))
        >>> variables = model.init(jax.random.key(0))
        >>> outputs, variables = model.apply(variables, jnp.zeros((2, 28, 28, 1)), train=False)
        >>> outputs.logits.shape, outputs.features.shape
        ((2, 10), (2, 128))
    """
    # Everything is converted to hashable, canonical values first, as equal arguments must be one key of the cache,
    # which would take 10.0 for 10.
    entry = _entry(name)
    given = read_options(name, options_of(entry.body), options)
    classes = whole_number(f"model {name!r}: num_classes", num_classes)
    try:
        shape = tuple(whole_number("input_shape", side) for side in input_shape)
    except (TypeError, ValueError):
        shape = ()
    if not shape or (len(shape) != 3 and not entry.any_shape):
        raise ValueError(
            f"model {name!r}: input_shape={input_shape} must be (height, width, channels), each at least 1 (a grey "
            "image has one channel: images[..., None]); mlp takes numbers of any shape, and text_mean token ids."
        )
    if min(shape[:2]) < entry.smallest:
        raise ValueError(
            f"model {name!r}: images of {shape[0]}x{shape[1]} pixels are too small, it needs at least "
            f"{entry.smallest}x{entry.smallest}: use larger images or another model."
        )
    return _build(entry, name, classes, shape, convolution, tuple(sorted(given.items())))


# Cached, because compiled programs belong to a model's functions: equal models must be the same object.
@functools.lru_cache(maxsize=64)
def _build(
    entry: _Entry,
    name: str,
    num_classes: int,
    input_shape: tuple[int, ...],
    convolution: str,
    options: tuple[tuple[str, Any], ...],
) -> Model:
    if entry.ready:
        # A user's builder may have no use for the choice.
        form = {"convolution": convolution} if "convolution" in inspect.signature(entry.body).parameters else {}
        return entry.body(num_classes, input_shape, **dict(options), **form)._replace(name=name, options=options)
    convolve = convolutions.of_name(convolution)
    body = entry.body(*([convolve] if convolves(name) else []), **dict(options))
    network = Network(body, Linear(num_classes, entry.head_bias))
    vocabulary = getattr(body, "vocabulary", None)
    input_dtype = "float32" if vocabulary is None else "int32"
    return Model(
        *_pure_functions(network, input_shape, input_dtype, entry.start),
        name,
        num_classes,
        input_shape,
        options,
        input_dtype,
        vocabulary=vocabulary,
    )


def num_params(model: Model) -> int:
    """Counts the trainable parameters without computing them; running statistics don't count.

    Example:
        >>> num_params(build("rebafl_fmnist", 10, (28, 28, 1)))
        117066
    """
    start_jax()
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def _pure_functions(
    network: Network, input_shape: tuple[int, ...], input_dtype: str, start: layers.ReplaceParams
) -> tuple[Callable, Callable, Callable]:
    """Makes the network's `init`, `apply` and `head`."""
    drops = any(getattr(network.body, "dropout", ()))

    @in_package_settings
    def init(key: Key) -> Variables:
        collections = network.init(key, jnp.zeros((1, *input_shape), input_dtype), None, train=False)
        return Variables(start(key, collections["params"]), collections.get("stats", {}))

    @in_package_settings
    def apply(
        variables: Variables, images: Array, *, train: bool, key: Key | None = None, real: Array | None = None
    ) -> tuple[Outputs, Variables]:
        collections = {"params": variables.params, "stats": variables.stats}
        if train and key is None and drops:
            raise ValueError(NO_KEY)
        mutable = [*_RECORDED, "stats"] if train else [*_RECORDED]
        rngs = None if key is None else {"dropout": key}
        (logits, features), changed = network.apply(collections, images, real, train=train, mutable=mutable, rngs=rngs)
        taps, levels = (tuple(jax.tree.leaves(changed.get(name, {}))) for name in ("taps", "levels"))
        outputs = Outputs(logits, features, taps, moment_pairs(changed.get("norm_inputs", {})), levels=levels)
        return outputs, variables._replace(stats=changed.get("stats", variables.stats))

    @in_package_settings
    def head(params: PyTree, features: Array) -> Array:
        return jnp.asarray(network.apply({"params": params}, features, method=Network.classify))

    # Jitted, so that a call by itself is one program and not one for each operation; inlined, so that it adds no call
    # to a larger program.
    return jax.jit(init, inline=True), jax.jit(apply, inline=True, static_argnames="train"), head


def _entry(name: str) -> _Entry:
    return MODELS[one_of("model", name, MODELS)]
