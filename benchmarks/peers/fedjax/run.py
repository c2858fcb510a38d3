"""FedAvg in FedJAX: `fedjax.algorithms.fed_avg`, one client after another, each step jitted.

    cd benchmarks && peers/fedjax/.venv/bin/python -m peers.fedjax.run --workload W3.npz --json out.json

FedJAX's other backend, over several devices, calls functions that JAX has given up; so there is one process and one
device, which uses all cores. FedJAX fills a client's short last batch with rows from its next shuffle. `fed_avg`
reports no training loss, so it rides along as one more parameter, whose "update" adds up the losses of the steps. Batch
statistics would have to be part of the parameters, and FedJAX has no place for them: `resnet20` doesn't run.
"""

import sys
from collections.abc import Callable
from typing import Any

import _rival
import numpy as np

PACKAGES = ("fedjax", "jax", "jaxlib", "dm-haiku", "numpy")


def main() -> None:
    arguments = _rival.parser(__doc__).parse_args()
    if arguments.processes != 1:
        sys.exit(f"fedjax: --processes {arguments.processes}: its jit backend has one process; leave it out")
    workload = _rival.load(arguments.workload, arguments.clients_per_round)
    if workload.spec["model"] == "resnet20":
        sys.exit("fedjax: resnet20 doesn't run: fed_avg has no place for batch statistics.")
    watch = _rival.Stopwatch(arguments.seconds)
    params = train(workload, watch)
    _rival.write(arguments.json, "fedjax", workload, watch, packages=PACKAGES, params=params, processes=1)


def train(workload: _rival.Workload, watch: _rival.Stopwatch) -> int:
    """Train until the time is over; the number of parameters."""
    import haiku
    import jax
    import jax.numpy as jnp

    # The one name that FedJAX still uses and JAX has dropped.
    jax.tree_map = jax.tree_util.tree_map
    import fedjax

    spec = workload.spec
    network = haiku.without_apply_rng(
        haiku.transform(lambda images: NETWORKS[spec["model"]](images, spec["num_classes"]))
    )

    def gradient(params: dict[str, Any], batch: dict[str, Any], _: Any) -> dict[str, Any]:
        def loss(weights: Any) -> Any:
            logits = jax.nn.log_softmax(network.apply(weights, batch["x"]))
            return -jnp.take_along_axis(logits, batch["y"][:, None], 1).mean()

        value, slopes = jax.value_and_grad(loss)(params["weights"])
        return {"weights": slopes, "tally": jnp.stack([value, 1.0])}

    fedjax.set_for_each_client_backend("jit")
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        gradient,
        tallying(client_optimizer(spec["optimizer"]), 1),
        tallying(fedjax.optimizers.sgd(1.0), -1),
        fedjax.ShuffleRepeatBatchHParams(spec["batch_size"], num_epochs=spec["local_epochs"]),
    )
    weights = network.init(jax.random.key(0), jnp.zeros((1, *spec["input_shape"])))
    state = algorithm.init({"weights": weights, "tally": jnp.zeros(2)})
    clients, before = dataset(workload), np.zeros(2)
    for number in watch.rounds():
        keys = jax.random.split(jax.random.PRNGKey(number), workload.cohorts.shape[1])
        cohort = [(client, clients(client), key) for client, key in zip(workload.cohort(number), keys, strict=True)]
        state, _ = algorithm.apply(state, cohort)
        jax.block_until_ready(state.params)
        tally = np.asarray(state.params["tally"])
        losses, steps = tally - before
        watch.lap(losses / steps)
        before = tally
    return sum(leaf.size for leaf in jax.tree_util.tree_leaves(weights))


def client_optimizer(chosen: dict[str, Any]) -> Any:
    import fedjax

    if chosen["name"] == "adam":
        return fedjax.optimizers.adam(chosen["learning_rate"])
    return fedjax.optimizers.sgd(chosen["learning_rate"], chosen.get("momentum") or None)


def tallying(optimizer: Any, sign: int) -> Any:
    """An optimizer of the weights alone; the tally just adds its "gradient", or takes it away."""
    import fedjax

    def apply(slopes: dict[str, Any], state: Any, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        state, weights = optimizer.apply(slopes["weights"], state, params["weights"])
        return state, {"weights": weights, "tally": params["tally"] + sign * slopes["tally"]}

    return fedjax.optimizers.Optimizer(lambda params: optimizer.init(params["weights"]), apply)


def dataset(workload: _rival.Workload) -> Callable[[int], Any]:
    import fedjax

    pixels = workload.pixels()

    def client(number: int) -> Any:
        rows = workload.client(number)
        return fedjax.ClientDataset({"x": pixels[rows], "y": workload.labels[rows]})

    return client


def conv2_pfl(images: Any, outputs: int) -> Any:
    import haiku
    import jax

    maps = jax.nn.relu(convolution(32, 3)(images))
    maps = jax.nn.relu(haiku.max_pool(convolution(64, 3, padding="VALID")(maps), 2, 2, "VALID"))
    return head(maps, 128, outputs)


def conv2_lenet(images: Any, outputs: int) -> Any:
    import haiku
    import jax

    maps = jax.nn.relu(haiku.max_pool(convolution(16, 5)(images), 2, 2, "VALID"))
    maps = jax.nn.relu(haiku.max_pool(convolution(32, 5)(maps), 2, 2, "VALID"))
    return head(maps, 128, outputs)


def mlp(images: Any, outputs: int) -> Any:
    return head(images, 64, outputs)


def astraea_cnn(images: Any, outputs: int) -> Any:
    import jax

    maps = jax.nn.relu(convolution(12, 5, 2, "VALID")(images))
    maps = jax.nn.relu(convolution(18, 3, 2, "VALID")(maps))
    maps = jax.nn.relu(convolution(24, 2, padding="VALID")(maps))
    return head(maps, 150, outputs)


NETWORKS = {network.__name__: network for network in (conv2_pfl, conv2_lenet, mlp, astraea_cnn)}


def convolution(outputs: int, size: int, stride: int = 1, padding: str = "SAME") -> Any:
    import haiku

    def apply(images: Any) -> Any:
        start = uniform(size**2 * images.shape[-1])
        return haiku.Conv2D(outputs, size, stride, padding=padding, w_init=start, b_init=start)(images)

    return apply


def head(maps: Any, hidden: int, outputs: int) -> Any:
    import haiku
    import jax

    flat = maps.reshape(len(maps), -1)
    first, last = uniform(flat.shape[1]), uniform(hidden)
    hidden_units = jax.nn.relu(haiku.Linear(hidden, w_init=first, b_init=first)(flat))
    return haiku.Linear(outputs, w_init=last, b_init=last)(hidden_units)


def uniform(inputs: int) -> Any:
    """As PyTorch starts weights and biases, so that the losses of all rivals can be compared."""
    import haiku

    return haiku.initializers.RandomUniform(-(inputs**-0.5), inputs**-0.5)


if __name__ == "__main__":
    main()
