"""Analyses after training: privacy leaks in images and prototypes, and models fine-tuned on clients."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_bal import models
from fedjax_bal.contrib import privacy
from fedjax_bal.data import normalised
from fedjax_bal.engine.host import FineTuner, Simulation, Snapshot, fetch, generated_images, shared_prototypes
from fedjax_bal.engine.processes import processes
from fedjax_bal.lab.folder import LEAKS, PERSONALISED
from fedjax_bal.lab.loop import Callback
from fedjax_bal.lab.run import Run
from fedjax_bal.metrics import across_clients, listed_clients
from fedjax_bal.types import Federation

_GRADIENTS = 4  # images whose gradients are inverted; few, because second derivatives are slow
_AUXILIARY = 10_000
_CLASSES = 20  # classes that a report shows


class PrivacyLeaks(NamedTuple):
    """Pictures by name, with pixels `UInt8[C, S, H, W, K]`, and numbers by name."""

    pictures: dict[str, np.ndarray]
    figures: dict[str, Any]


def nearest_images(simulation: Simulation, generated: np.ndarray) -> PrivacyLeaks:
    """Finds the clients' image nearest to each generated one, `UInt8[C, S, H, W, K]`, and its distance.

    The distances of test images, on which no client trained, serve as a control. Distances are root mean squares over
    pixels of 0 to 255; their mean and minimum are returned.
    """
    federation = simulation.federation
    pool = _pixels(np.asarray(federation.images)[np.unique(np.asarray(federation.rows))])
    flat = generated.reshape(-1, *generated.shape[2:])
    rows, distances = privacy.nearest(flat, pool)
    tests = _test_images(simulation)[0]
    controls = tests[_sample_rows(len(tests), len(flat))]
    _, control_distances = privacy.nearest(_pixels(controls), pool)
    summary = lambda values: {"mean": float(np.mean(values)), "least": float(np.min(values))}
    figures = {"generated": summary(distances), "test": summary(control_distances)}
    return PrivacyLeaks({"nearest": pool[np.asarray(rows)].reshape(generated.shape)}, {"nearest": figures})


def attack_prototypes(simulation: Simulation, snapshot: Snapshot, steps: int) -> PrivacyLeaks:
    """Attacks the prototypes that clients and server share, and single images for comparison.

    The attacker knows the global model and all test images except one per class. Attacks on the features of these
    images, or on the gradient of one of them, serve as a control: they show how much an attack can recover. As in
    ReBaFL (Xu et al., 2023), section 5.6.

    Returns pictures `prototype/ATTACK`, `single/ATTACK` and `gradient/grnn`, with the truth: `mean` (of the clients'
    images of a class) and `single`; and correlations of the pixels with the truth and with other classes. Empty for a
    method without shared prototypes.
    """
    shared = shared_prototypes(simulation, snapshot)
    if shared is None:
        return PrivacyLeaks({}, {})
    features, known = (np.asarray(array) for array in shared)
    federation = simulation.federation
    model = simulation.setting.model
    variables = snapshot.state.variables
    black = _black(federation)
    limits = (black, (1 - jnp.asarray(federation.mean)) / jnp.asarray(federation.std))
    key = jax.random.key(0)

    # The attacker's images and one further image per class; an arbitrary one for classes that the test set lacks.
    images, labels = _test_images(simulation)
    order = _sample_rows(len(labels), len(labels))
    ones = order[[np.argmax(labels[order] == label) for label in range(federation.num_classes)]]
    rest = order[~np.isin(order, ones)][:_AUXILIARY]
    singles = normalised(jnp.asarray(images[ones]), federation.mean, federation.std)
    auxiliary = normalised(jnp.asarray(images[rest]), federation.mean, federation.std)

    # Images from the prototypes and from the features of single images.
    classes = np.flatnonzero(known)[:_CLASSES]
    means = _class_means(federation)
    found = {"single": np.asarray(singles), "mean": means}
    if len(classes):
        targets = jnp.concatenate([jnp.asarray(features[classes]), privacy.features_of(model, variables, singles)])
        made = {}
        for kind in ("upcnn", "vae"):
            decoder = privacy.fit_decoder(key, model, variables, auxiliary, kind=kind, iterations=steps)
            made[kind] = privacy.decode(decoder, targets)
        made["grnn"] = privacy.regress(key, model, variables, targets, iterations=steps, limits=limits).images
        for attack, decoded in made.items():
            prototypes = np.broadcast_to(np.asarray(black, np.float32), means.shape).copy()
            prototypes[classes] = decoded[: len(classes)]
            found[f"prototype/{attack}"] = prototypes
            found[f"single/{attack}"] = np.asarray(decoded[len(classes) :])

    # A few of the single images from their gradients; the others stay black.
    network = models.differentiable(model)
    few = singles[:_GRADIENTS]
    gradients = privacy.single_gradients(network, variables, few, jnp.arange(len(few)))
    search = privacy.regress(key, network, variables, gradients, of="gradient", iterations=steps, limits=limits)
    inverted = np.broadcast_to(np.asarray(black, np.float32), singles.shape).copy()
    inverted[: len(few)] = search.images
    found["gradient/grnn"] = inverted

    mean = np.asarray(federation.mean)
    std = np.asarray(federation.std)
    pictures = {name: _pixels(np.asarray(array) * std + mean)[:_CLASSES, None] for name, array in found.items()}
    return PrivacyLeaks(pictures, {"inversion": _figures(found, classes)})


def _figures(images_by_attack: Mapping[str, np.ndarray], classes: np.ndarray) -> dict[str, Any]:
    """Computes each attack's correlations with the true images and with those of other classes."""
    correlations = {}
    for name, images in images_by_attack.items():
        kind = name.partition("/")[0]
        if kind == name:
            continue
        truth = images_by_attack["mean" if kind == "prototype" else "single"]
        rows = {"prototype": classes, "gradient": np.arange(min(_GRADIENTS, len(truth)))}.get(kind, range(len(truth)))
        correlations[name] = _correlations(images[np.asarray(rows)], truth, np.asarray(rows))
    return correlations


def _correlations(images: np.ndarray, truth: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    table = np.stack([privacy.recovered(images, np.broadcast_to(one, images.shape)) for one in truth], 1)
    right = table[np.arange(len(rows)), rows]
    others = (table.sum(1) - right) / max(len(truth) - 1, 1)
    return {"truth": float(right.mean()), "others": float(others.mean())}


def _test_images(simulation: Simulation) -> tuple[np.ndarray, np.ndarray]:
    """Test images, in their stored format, and labels."""
    images, labels, real = fetch(simulation.test)
    return images[real], labels[real]


def _sample_rows(total: int, count: int) -> np.ndarray:
    """Samples at most `count` of `total` rows, the same in every run; at random, because test sets are often sorted."""
    return np.random.default_rng(0).permutation(total)[:count]


def _class_means(federation: Federation) -> np.ndarray:
    """Mean of the clients' images of each class, normalised, `Float32[C, H, W, K]`; black for an absent class."""
    rows = np.unique(np.asarray(federation.rows))
    labels = np.asarray(federation.labels)[rows]
    black = np.broadcast_to(np.asarray(_black(federation), np.float32), np.shape(federation.images)[1:])
    means = [black] * federation.num_classes
    for label in np.unique(labels):
        mean = np.asarray(federation.images)[rows[labels == label]].mean(0, dtype=np.float64)
        whole = 255.0 if federation.images.dtype == np.uint8 else 1.0
        means[label] = ((mean / whole - np.asarray(federation.mean)) / np.asarray(federation.std)).astype(np.float32)
    return np.stack(means)


def _black(federation: Federation) -> jax.Array:
    return -jnp.asarray(federation.mean) / jnp.asarray(federation.std)


def _pixels(images: np.ndarray) -> np.ndarray:
    """Converts images to `UInt8`; floats are fractions of full brightness."""
    return images if images.dtype == np.uint8 else np.clip(np.rint(images * 255), 0, 255).astype(np.uint8)


def some_of_each_class(federation: Federation, classes: int, count: int) -> np.ndarray:
    """The clients' first images of each class, `UInt8[classes, count, H, W, K]`; black where a class has fewer."""
    rows = np.unique(np.asarray(federation.rows))
    labels = np.asarray(federation.labels)[rows]
    images = federation.images
    found = np.zeros((classes, count, *np.shape(images)[1:]), np.uint8)
    for label in range(classes):
        shown = rows[labels == label][:count]
        found[label, : len(shown)] = _pixels(np.asarray(images[shown]))
    return found


class PostTraining(Callback):
    """Runs the analyses that the configuration asks for, once per run, and saves their results in the run folder."""

    def __init__(self) -> None:
        self.tuners: dict[int, FineTuner] = {}  # by the identity of the simulation

    def saving(self, run: Run, simulation: Simulation, snapshot: Snapshot) -> None:
        """Saves images that the model generates at a checkpoint."""
        _keep_pictures(run, simulation, snapshot)

    def ended(self, run: Run, simulation: Simulation, snapshot: Snapshot) -> None:
        """Runs the analyses that are missing for a run."""
        if run.settings is None:
            return
        # Only the first process reads files, but all processes must take the same branch.
        is_done = lambda kind: processes().any(run.folder.read_analysis(kind, *run.id) is not None)
        evaluation = run.settings.evaluation
        if evaluation.privacy and run.of_first_seed and not is_done(LEAKS):
            run.note(f"{run.title}: looking for what it gives away")
            pictures = _keep_pictures(run, simulation, snapshot)
            leaks = [attack_prototypes(simulation, snapshot, evaluation.attack_steps)]
            if pictures:
                leaks.append(nearest_images(simulation, pictures["generated"]))
            for attack in leaks:
                pictures |= attack.pictures
            if pictures:
                run.folder.write_pictures(*run.id, pictures)
            figures = {name: value for attack in leaks for name, value in attack.figures.items()}
            run.folder.write_analysis(LEAKS, *run.id, figures)
        epochs = evaluation.personalised
        if epochs is not None and not is_done(PERSONALISED):
            run.note(f"{run.title}: fine-tuning the final model on each client")
            tuner = self.tuners.setdefault(id(simulation), FineTuner(simulation, epochs))
            accuracies, diverged = tuner.run(run.id.seed, snapshot)
            figures = {
                "epochs": epochs,
                "clients": int(np.count_nonzero(~np.isnan(accuracies))),
                "diverged": diverged,
                **across_clients("personalised_accuracy", accuracies),
                "accuracies": listed_clients(accuracies),
            }
            run.folder.write_analysis(PERSONALISED, *run.id, figures)


def _keep_pictures(run: Run, simulation: Simulation, snapshot: Snapshot) -> dict[str, Any]:
    """Saves a method's generated images together with real ones; returns both."""
    generated = generated_images(simulation, snapshot)
    if generated is None:
        return {}
    pictures = {"real": some_of_each_class(simulation.federation, *generated.shape[:2]), "generated": generated}
    run.folder.write_pictures(*run.id, pictures)
    return pictures
