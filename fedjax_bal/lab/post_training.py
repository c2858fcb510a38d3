"""The steps after training: pictures, models fine-tuned on clients, tests on new ones, and analyses of plug-ins."""

from typing import Any

import numpy as np

from fedjax_bal.analyses import ANALYSES
from fedjax_bal.engine.host import FineTuner, Simulation, Snapshot, generated_images
from fedjax_bal.engine.processes import processes
from fedjax_bal.lab.folder import NEW_CLIENTS, PERSONALISED
from fedjax_bal.lab.loop import Callback
from fedjax_bal.lab.run import Run
from fedjax_bal.lab.summary import summarise_clients
from fedjax_bal.metrics import across_clients, listed_clients, mean_known
from fedjax_bal.types import Federation


class PostTraining(Callback):
    """Runs the steps that a configuration asks for after training, once per run, and saves their results."""

    def __init__(self) -> None:
        self.tuners: dict[int, FineTuner] = {}  # by the identity of the simulation

    def saving(self, run: Run, simulation: Simulation, snapshot: Snapshot) -> None:
        """Saves images that the model generates at a checkpoint, together with real ones."""
        generated = generated_images(simulation, snapshot)
        if generated is not None:
            real = some_of_each_class(simulation.federation, *generated.shape[:2])
            run.folder.write_pictures(*run.id, {"real": real, "generated": generated})

    def ended(self, run: Run, simulation: Simulation, snapshot: Snapshot) -> None:
        """Runs the steps that a run lacks; a kill may have interrupted an earlier session between them."""
        if run.settings is None:
            return
        # Only the first process reads files, but all processes must take the same branch.
        is_done = lambda saved: processes().any(saved is not None)
        evaluation = run.settings.evaluation
        for name, options in evaluation.analyses.items() if run.of_first_seed else ():
            if not is_done(run.folder.read_findings(name, *run.id)):
                run.note(f"{run.title}: running the analysis {name}")
                run.folder.write_findings(name, *run.id, ANALYSES[name](**options).examine(simulation, snapshot))
        epochs = evaluation.personalised
        if epochs is not None and not is_done(run.folder.read_analysis(PERSONALISED, *run.id)):
            run.note(f"{run.title}: fine-tuning the final model on each client")
            tuner = self.tuners.setdefault(id(simulation), FineTuner(simulation, epochs))
            accuracies, diverged = tuner.run(run.id.seed, snapshot)
            figures: dict[str, Any] = {
                "epochs": epochs,
                "clients": int(np.count_nonzero(~np.isnan(accuracies))),
                "diverged": diverged,
                **across_clients("personalised_accuracy", accuracies),
                "accuracies": listed_clients(accuracies, most=None),
            }
            run.folder.write_analysis(PERSONALISED, *run.id, figures)
        if run.tuner is not None and not is_done(run.folder.read_analysis(NEW_CLIENTS, *run.id)):
            run.note(f"{run.title}: testing the final model on new clients")
            tuned, diverged = run.tuner.run(run.id.seed, snapshot)
            known = summarise_clients(run.id, run.tuner.federation, run.tuner.hits(run.id.seed, snapshot))
            figures = {
                "epochs": evaluation.new_client_epochs,
                "clients": int(np.count_nonzero(~np.isnan(tuned))),
                "diverged": diverged,
                "new_client_accuracy": mean_known(known.accuracy),
                "new_client_fine_tuned_accuracy": mean_known(tuned),
                "accuracy": listed_clients(known.accuracy, most=None),
                "balanced_accuracy": listed_clients(known.balanced_accuracy, most=None),
                "fine_tuned_accuracy": listed_clients(tuned, most=None),
            }
            run.folder.write_analysis(NEW_CLIENTS, *run.id, figures)


def some_of_each_class(federation: Federation, classes: int, count: int) -> np.ndarray:
    """Returns the clients' first images by class, `UInt8[classes, count, H, W, K]`; black where a class has fewer."""
    rows = np.unique(np.asarray(federation.rows))
    labels = np.asarray(federation.labels)[rows]
    images = federation.images
    examples = np.zeros((classes, count, *np.shape(images)[1:]), np.uint8)
    for label in range(classes):
        shown = rows[labels == label][:count]
        examples[label, : len(shown)] = to_pixels(np.asarray(images[shown]))
    return examples


def to_pixels(images: np.ndarray) -> np.ndarray:
    """Converts images to `UInt8`; floats are fractions of full brightness."""
    return images if images.dtype == np.uint8 else np.clip(np.rint(images * 255), 0, 255).astype(np.uint8)
