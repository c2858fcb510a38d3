"""The clients' own models at the end of a run, made once and noted in its folder."""

from fedjax_bal.engine.host import FineTuner, Simulation, Snapshot
from fedjax_bal.engine.processes import processes
from fedjax_bal.experiments.display import Progress
from fedjax_bal.metrics import across_clients, order_statistics
from fedjax_bal.runs import RunFolder


class FineTuningTask:
    """Fine-tunes final models on each client, where that is asked for and hasn't been done.

    Args:
        folder: where what comes of it is noted.
        display: what the user sees.
    """

    def __init__(self, folder: RunFolder, display: Progress) -> None:
        self.folder, self.display = folder, display
        self.made: dict[int, FineTuner] = {}

    def after(
        self, run: tuple[int, int], name: str, simulation: Simulation, snapshot: Snapshot, epochs: int | None
    ) -> None:
        """Does so at the end of a run.

        Args:
            run: number of the method, and seed.
            name: the method's name.
            simulation: its simulation.
            snapshot: where the run ended.
            epochs: how many of fine-tuning; None for none.
        """
        if epochs is None or processes().any(self.folder.read_personalised(*run) is not None):
            return
        self.display.note(f"{name}, seed {run[1]}: fine-tuning the final model on each client")
        if run[0] not in self.made:
            self.made[run[0]] = FineTuner(simulation, epochs)
        accuracies, diverged = self.made[run[0]].run(run[1], snapshot)
        figures = {
            "epochs": epochs,
            "clients": len(accuracies),
            "diverged": diverged,
            **across_clients("personalised_accuracy", accuracies),
            "accuracies": order_statistics(accuracies),
        }
        self.folder.write_personalised(*run, figures)
