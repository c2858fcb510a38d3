"""With which constants data sets are normalised, and how they are replaced."""

import numpy as np
import pytest

from fedjax_bal import data

IMAGES = data.load("fashion_mnist_small").train_images
OWN = (IMAGES / 255).mean(), (IMAGES / 255).std()


def test_every_grey_set_gets_the_constants_of_mnist_unless_its_own_are_asked_for():
    assert data.load("fashion_mnist_small").mean == (0.1307,) and data.load("fashion_mnist_small").std == (0.3081,)
    np.testing.assert_allclose(OWN, (0.2854, 0.3526), atol=5e-5)
    own = data.load("fashion_mnist_small", mean="own", std="own")
    np.testing.assert_allclose((own.mean, own.std), np.reshape(OWN, (2, 1)), rtol=1e-9)
    half = data.load("fashion_mnist_small", mean=0.5, std="own")
    assert half.mean == (0.5,) and half.std == own.std


def test_numbers_are_one_or_one_for_each_channel():
    images = np.zeros((1, 2, 2, 3), np.uint8)
    assert data.normalisation("cifar10", images, 0.5, [1, 2, 3]) == ((0.5, 0.5, 0.5), (1.0, 2.0, 3.0))
    assert data.normalisation("cifar10", images)[0] == (0.4914, 0.4822, 0.4465)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"mean": [0.1, 0.2]}, r"fashion_mnist_small: mean=\[0.1, 0.2\]"),
        ({"std": 0}, "std=0"),
        ({"mean": "onw"}, "mean='onw'"),
        ({"std": float("inf")}, "std=inf; expected"),
    ],
)
def test_what_is_no_constant_is_refused(constants, message):
    with pytest.raises(ValueError, match=message):
        data.load("fashion_mnist_small", **constants)
