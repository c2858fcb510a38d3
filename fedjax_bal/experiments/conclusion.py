"""Concludes finished runs: looks for privacy leaks, and fine-tunes final models on the clients."""

from typing import Any

from fedjax_bal.engine.host import FineTuner, Snapshot, generated_images
from fedjax_bal.engine.processes import processes
from fedjax_bal.experiments.display import Progress
from fedjax_bal.experiments.leaks import attack_prototypes, nearest_images, some_of_each_class
from fedjax_bal.experiments.setup import Comparison
from fedjax_bal.metrics import across_clients, order_statistics
from fedjax_bal.runs import RunFolder


class Conclusion:
    """Writes into the run folder, once per run, what the configuration wants to know of final models."""

    def __init__(self, comparison: Comparison, folder: RunFolder, display: Progress) -> None:
        self.comparison, self.folder, self.display = comparison, folder, display
        self.tuners: dict[int, FineTuner] = {}  # by the identity of their simulations

    def conclude(self, run: tuple[int, int], snapshot: Snapshot) -> None:
        """Does what is left to do for a run: a method's number and a seed."""
        method, known = self.comparison.methods[run[0]], lambda found: processes().any(found is not None)
        title, evaluation = f"{method.name}, seed {run[1]}", method.evaluation
        attacked = evaluation.privacy and run[1] == self.comparison.config.seeds[0]
        if attacked and not known(self.folder.read_leaks(*run)):
            self.display.note(f"{title}: looking for what it gives away")
            self._look_for_leaks(run, snapshot, evaluation.attack_steps)
        epochs = evaluation.personalised
        if epochs is not None and not known(self.folder.read_personalised(*run)):
            self.display.note(f"{title}: fine-tuning the final model on each client")
            self._fine_tune(run, snapshot, epochs)

    def keep_pictures(self, run: tuple[int, int], snapshot: Snapshot) -> dict[str, Any]:
        """Writes the images that a method has learnt to make, with real ones beside them; returns both."""
        simulation = self.comparison.simulation(run)
        generated = generated_images(simulation, snapshot)
        if generated is None:
            return {}
        pictures = {"real": some_of_each_class(simulation.federation, *generated.shape[:2]), "generated": generated}
        self.folder.write_pictures(*run, pictures)
        return pictures

    def _look_for_leaks(self, run: tuple[int, int], snapshot: Snapshot, steps: int) -> None:
        simulation = self.comparison.simulation(run)
        pictures = self.keep_pictures(run, snapshot)
        found = [attack_prototypes(simulation, snapshot, steps)]
        if pictures:
            found.append(nearest_images(simulation, pictures["generated"]))
        for leaks in found:
            pictures |= leaks.pictures
        if pictures:
            self.folder.write_pictures(*run, pictures)
        self.folder.write_leaks(*run, {name: value for leaks in found for name, value in leaks.figures.items()})

    def _fine_tune(self, run: tuple[int, int], snapshot: Snapshot, epochs: int) -> None:
        simulation = self.comparison.simulation(run)
        tuner = self.tuners.setdefault(id(simulation), FineTuner(simulation, epochs))
        accuracies, diverged = tuner.run(run[1], snapshot)
        figures = {
            "epochs": epochs,
            "clients": len(accuracies),
            "diverged": diverged,
            **across_clients("personalised_accuracy", accuracies),
            "accuracies": order_statistics(accuracies),
        }
        self.folder.write_personalised(*run, figures)
