"""Batch normalisation against numbers that PyTorch gave: two training steps, then evaluation.

Recorded with torch 2.13.0 on a CPU, images in its order of axes:

    norm = torch.nn.BatchNorm2d(2)
    norm.weight.data, norm.bias.data = torch.tensor([1.5, -0.5]), torch.tensor([0.25, 1.0])
    outputs = norm(torch.tensor(FIRST)), norm(torch.tensor(SECOND))
    norm.running_mean, norm.running_var
    norm.eval()
    norm(torch.tensor(FIRST))
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal.models.normalization import BatchNorm

FIRST = (np.arange(16) ** 2 / 8).astype(np.float32).reshape(2, 2, 2, 2)
SECOND = (7 * np.arange(24) % 11 / 4).astype(np.float32).reshape(3, 2, 2, 2)
RUNNING = {"mean": [0.6385416984558105, 1.3489583730697632], "var": [4.375179767608643, 11.002189636230469]}
TRAINED = (
    [
        *(-1.280136, -1.247923, -1.151283, -0.9902158, 1.576019, 1.519361, 1.450113, 1.368274),
        *(0.7815211, 1.329149, 1.941203, 2.617685, 0.7702221, 0.6128399, 0.4428671, 0.2603038),
    ],
    [
        *(-1.569005, 1.486923, -0.2593213, 2.796607, 0.9259247, 1.637048, 0.3925821, 1.103706),
        *(-1.132444, 1.923485, 0.1772399, -1.569005, 0.7481438, 1.459267, 0.2148012, 0.9259247),
        *(-0.6958824, 2.360046, 0.6138011, -1.132444, 0.5703629, 1.281486, 1.99261, 0.7481438),
    ],
)
EVALUATED = [
    *(-0.207912, -0.1182718, 0.1506488, 0.5988498, 0.9018615, 0.7322784, 0.52501, 0.2800566),
    *(5.529061, 7.052944, 8.756108, 10.63855, -1.509988, -1.981053, -2.489802, -3.036237),
]


def ours(images):
    """PyTorch's order of axes to this package's."""
    return jnp.asarray(images.transpose(0, 2, 3, 1))


def theirs(images):
    return np.asarray(images).transpose(0, 3, 1, 2).ravel()


@jax.jit
def train(variables, images):
    return BatchNorm().apply(variables, images, None, train=True, mutable=["stats"])


@jax.jit
def evaluate(variables, images):
    return BatchNorm().apply(variables, images, None, train=False)


def test_two_steps_and_evaluation_are_those_of_pytorch():
    params = {"scale": jnp.array([1.5, -0.5]), "bias": jnp.array([0.25, 1.0])}
    stats = {"mean": jnp.zeros(2), "var": jnp.ones(2)}
    for images, expected in zip((FIRST, SECOND), TRAINED, strict=True):
        output, changed = train({"params": params, "stats": stats}, ours(images))
        np.testing.assert_allclose(theirs(output), expected, rtol=2e-5, atol=2e-6)
        stats = changed["stats"]
    for name, expected in RUNNING.items():
        np.testing.assert_allclose(stats[name], expected, rtol=1e-6)
    output = evaluate({"params": params, "stats": stats}, ours(FIRST))
    np.testing.assert_allclose(theirs(output), EVALUATED, rtol=2e-5, atol=2e-6)
