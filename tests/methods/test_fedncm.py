"""FedNCM: against a transcription in NumPy."""

import numpy as np
import pytest
import toys
from methods import float64
from methods.heads import as_numpy, flat_images, network

from fedjax_bal.recipes import combine, fedavg, fedetf, fedncm, fednh, ldam
from fedjax_bal.types import Federation

C = toys.CLASSES

pytestmark = pytest.mark.usefixtures("double")


def confusion(features, labels, kernel):
    """Of the classes with the largest inner product."""
    return np.bincount(labels * C + (features @ kernel).argmax(1), minlength=C * C).reshape(C, C).tolist()


def without_class(data: Federation, lost: int) -> Federation:
    """A federation none of whose clients has a class."""
    keep = data.labels[data.rows] != lost
    sizes = [keep[a:b].sum() for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
    counts = data.class_counts * (np.arange(C) != lost)
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int32)
    return data._replace(rows=data.rows[keep], copy=data.copy[keep], offsets=offsets, class_counts=counts)


@pytest.mark.parametrize("lost", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_evaluation_takes_the_directions_of_the_class_means(lost):
    data = toys.federation() if lost is None else without_class(toys.federation(), lost)
    sim = float64.simulation(fedncm(), model=network(), federation=data, rounds=2)
    state, _, found = float64.finished(sim)
    params = as_numpy(state.variables.params)
    features, labels = np.tanh(flat_images() @ params["body"]), data.labels
    kernel = np.zeros((toys.FEATURES, C))
    for c in range(C):
        rows = data.rows[labels[data.rows] == c]
        if len(rows):
            mean = features[rows].mean(0)
            kernel[:, c] = mean / np.linalg.norm(mean)
    own = confusion(features, labels, kernel)
    assert found.tolist() == own
    assert own != confusion(features, labels, params["head"]["kernel"]) and kernel[:, 0].any()


@pytest.mark.slow
def test_training_is_that_of_fedavg():
    runs = [float64.run(float64.simulation(r, model=network())).variables.params for r in (fedncm(), fedavg())]
    assert toys.largest_difference(*runs) == 0


@pytest.mark.parametrize("other", [fedetf, fednh, ldam])
def test_classifiers_of_cosines_are_refused(other):
    with pytest.raises(ValueError, match="fedncm: received the model headed"):
        float64.simulation(combine(other(), fedncm()), model=network())
