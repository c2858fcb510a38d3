"""Fine-tunes final models on the clients, once per run, and notes the accuracies in the run folder."""

from fedjax_bal.engine.host import FineTuner, Simulation, Snapshot
from fedjax_bal.engine.processes import processes
from fedjax_bal.experiments.display import Progress
from fedjax_bal.metrics import across_clients, order_statistics
from fedjax_bal.runs import RunFolder


class FineTuningTask:
    """Fine-tunes final models on each client, if the configuration asks for it and the folder doesn't have the result.

    Args:
        folder: the run folder, in which the result is noted.
        display: the progress display.
    """

    def __init__(self, folder: RunFolder, display: Progress) -> None:
        self.folder, self.display = folder, display
        self.tuners: dict[int, FineTuner] = {}

    def fine_tune(
        self, run: tuple[int, int], name: str, simulation: Simulation, snapshot: Snapshot, epochs: int
    ) -> None:
        """Fine-tunes a run's final model for so many epochs; `run` is the method's number and the seed."""
        if processes().any(self.folder.read_personalised(*run) is not None):
            return
        self.display.note(f"{name}, seed {run[1]}: fine-tuning the final model on each client")
        if run[0] not in self.tuners:
            self.tuners[run[0]] = FineTuner(simulation, epochs)
        accuracies, diverged = self.tuners[run[0]].run(run[1], snapshot)
        figures = {
            "epochs": epochs,
            "clients": len(accuracies),
            "diverged": diverged,
            **across_clients("personalised_accuracy", accuracies),
            "accuracies": order_statistics(accuracies),
        }
        self.folder.write_personalised(*run, figures)
