"""Rounds of FedAvg in PyTorch, by one process or by several, whatever it is that trains their clients.

A model's values are one flat vector, so that loading, averaging and sharing them are one call each. Several processes
stay alive, have an equal share of the cores and of every cohort's rows, and meet in shared memory twice a round.
"""

import os
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from multiprocessing.synchronize import Barrier
from typing import NamedTuple, Protocol

import _rival
import numpy as np
import torch
from torch import Tensor, nn

ALIGNED = 64
"""Every tensor starts at a multiple of so many floats: kernels on GPUs need 16 bytes, and are faster with more."""

PATIENCE = 300
"""Seconds that a process waits for another: then one of them has failed."""


class Trainer(Protocol):
    """What trains clients, in one process.

    Attributes:
        values: `[P]`, where the global model starts.
    """

    values: Tensor

    def cohort(self, clients: Sequence[int], start: Tensor, total: Tensor) -> tuple[float, int]:
        """Train clients from `start` and write the sum of their values, weighted by size, into `total`.

        Returns:
            The sum of the losses of all steps, and how many steps there were.
        """
        ...


class Meeting(NamedTuple):
    """What the processes share.

    Attributes:
        start: `[P]`, the global model at the start of a round.
        sums: `[processes, P]`, each process's weighted sum of its clients' values.
        losses: `[processes, 2]`, each process's sum of losses, and its steps.
        go: 1 while there is another round.
        barrier: where they wait for each other.
    """

    start: Tensor
    sums: Tensor
    losses: Tensor
    go: Tensor
    barrier: Barrier


Maker = Callable[[int], Trainer]
"""Makes a process's trainer from the process's number."""


def flat(network: nn.Module) -> Tensor:
    """Move a network's floating tensors into one vector, of which they become views in channels-last memory."""
    tensors = [*network.parameters(), *(value for value in network.buffers() if value.is_floating_point())]
    starts = [0, *accumulate(-(-tensor.numel() // ALIGNED) * ALIGNED for tensor in tensors)]
    values = torch.zeros(starts[-1], device=tensors[0].device)
    for tensor, start in zip(tensors, starts, strict=False):
        piece = values[start : start + tensor.numel()]
        if tensor.dim() == 4:
            outputs, inputs, height, width = tensor.shape
            piece = piece.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
        tensor.data = piece.view_as(tensor).copy_(tensor.data)
    return values


def share(workload: _rival.Workload, cohort: np.ndarray, processes: int) -> list[list[int]]:
    """Deal a cohort out to processes, the largest client first, each to the process with the fewest rows."""
    shares, loads = [[] for _ in range(processes)], [0] * processes
    for client in sorted(map(int, cohort), key=workload.size, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(client)
        loads[least] += workload.size(client)
    return shares


def run(workload: _rival.Workload, make: Maker, processes: int, watch: _rival.Stopwatch) -> _rival.Stopwatch:
    """Train whole rounds until the watch's time is over."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    return _alone(workload, make, watch) if processes == 1 else _together(workload, make, processes, watch)


def _alone(workload: _rival.Workload, make: Maker, watch: _rival.Stopwatch) -> _rival.Stopwatch:
    trainer = make(0)
    start, total = trainer.values.clone(), torch.zeros_like(trainer.values)
    for number in watch.rounds():
        cohort = workload.cohort(number)
        losses, steps = trainer.cohort(cohort.tolist(), start, total)
        start = total / sum(map(workload.size, cohort))
        watch.lap(losses / steps)
    return watch


def _together(workload: _rival.Workload, make: Maker, processes: int, watch: _rival.Stopwatch) -> _rival.Stopwatch:
    context = torch.multiprocessing.get_context("fork")
    trainer = make(0)
    if trainer.values.is_cuda:
        sys.exit(f"--processes {processes} --device cuda: one process drives the GPU; leave out --processes")
    meeting = Meeting(
        trainer.values.clone().share_memory_(),
        torch.zeros(processes, len(trainer.values)).share_memory_(),
        torch.zeros(processes, 2).share_memory_(),
        torch.ones(1).share_memory_(),
        context.Barrier(processes, timeout=PATIENCE),
    )
    ranks = range(1, processes)
    others = [context.Process(target=_help, args=(workload, make, meeting, rank), daemon=True) for rank in ranks]
    for other in others:
        other.start()
    for number in watch.rounds():
        _take_part(workload, trainer, meeting, number, 0)
        meeting.start.copy_(meeting.sums.sum(0) / sum(map(workload.size, workload.cohort(number))))
        losses, steps = meeting.losses.sum(0).tolist()
        watch.lap(losses / steps)
    meeting.go.zero_()
    meeting.barrier.wait()
    for other in others:
        other.join()
    return watch


def _help(workload: _rival.Workload, make: Maker, meeting: Meeting, rank: int) -> None:
    trainer, number = make(rank), 0
    while _take_part(workload, trainer, meeting, number, rank):
        number += 1


def _take_part(workload: _rival.Workload, trainer: Trainer, meeting: Meeting, number: int, rank: int) -> bool:
    """One process's share of a round; whether there was one."""
    meeting.barrier.wait()
    if not meeting.go.item():
        return False
    clients = share(workload, workload.cohort(number), len(meeting.sums))[rank]
    meeting.losses[rank] = torch.tensor(trainer.cohort(clients, meeting.start, meeting.sums[rank]))
    meeting.barrier.wait()
    return True
