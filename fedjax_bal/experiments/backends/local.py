"""Trains batches of runs in this process."""

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax

from fedjax_bal.engine.host import program_of
from fedjax_bal.experiments.grouping import SweepBatch
from fedjax_bal.experiments.training import BatchTraining, Event, Started, StepResult, Stopped, train_batch


class LocalBackend:
    """Trains in this process, one batch after the other, and compiles the next one's program meanwhile."""

    places = 1

    def about(self) -> str:
        """Returns nothing."""
        return ""

    def train(
        self, waiting: deque[BatchTraining], should_stop: Callable[[], bool]
    ) -> Generator[tuple[BatchTraining, Event], None, None]:
        """Trains the waiting batches."""
        with _compiled_ahead(training.batch for training in waiting):
            while waiting:
                training = waiting.popleft()
                yield training, Started(socket.gethostname(), os.getpid())
                stopped = False
                try:
                    for event in train_batch(training.starts(), should_stop):
                        yield training, event
                        stopped = isinstance(event, StepResult) and event.stopped
                except Exception as error:  # the caller knows after which errors it can go on
                    yield training, error
                if stopped:
                    raise Stopped


@contextlib.contextmanager
def _compiled_ahead(batches: Iterable[SweepBatch]) -> Iterator[Sequence[Future[Any]]]:
    """Within this context a thread compiles the programs of batches, in this order, while others are trained."""
    # A stopped run doesn't wait for the thread: XLA can't be interrupted, and everything is saved by then. Several
    # processes don't compile ahead, as all of them would have to compile at the same moments. The thread only compiles:
    # its errors are dropped, as a batch that is reached asks again; and what the machine's free memory decides is
    # decided then, while nothing else is trained.
    thread = ThreadPoolExecutor(1, "compilation")
    alike = dict.fromkeys(tuple(task.simulation for task in batch.tasks) for batch in batches)
    try:
        # The list keeps the programs until they are asked for.
        programs = [thread.submit(program_of, own) for own in alike if jax.process_count() == 1]
        yield programs
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
