"""What TensorBoard itself reads of a tracked run."""

import pytest

from fedjax_bal.contrib.trackers import TensorBoard
from fedjax_bal.lab.trackers import TrackedRun

RUN = TrackedRun("mine", "fedavg", "fedavg, seed 0", "01234567-89abcdef", "fedavg-seed-0", {"seed": 0})


@pytest.fixture(autouse=True)
def accumulators():
    """TensorBoard's readers."""
    name = "tensorboard.backend.event_processing.event_accumulator"
    return pytest.importorskip(name, reason="needs the extra [tensorboard]")


def lines(*rounds):
    return [
        {"round": n, "test_accuracy": n / 8, "per_class_accuracy": [n / 4, None], "wall_s": 2.5 * n} for n in rounds
    ]


def curve(reader, tag="test_accuracy"):
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def test_it_reads_each_round_once_with_training_time(accumulators, tmp_path):
    tracker = TensorBoard(tmp_path)
    opened = tracker.begin(RUN)
    tracker.log(opened, lines(2, 4))
    tracker.log(opened, lines(6))
    reader = accumulators.EventAccumulator(str(tmp_path / "tensorboard" / "fedavg-seed-0"))
    assert curve(reader) == [(2, 0.25), (4, 0.5), (6, 0.75)]
    assert sorted(reader.Tags()["scalars"]) == ["per_class_accuracy/0", "test_accuracy", "wall_s"]
    times = [event.wall_time for event in reader.Scalars("test_accuracy")]
    assert [later - times[0] for later in times] == pytest.approx([0, 5, 10])
    tracker.finish(opened)
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]


def test_a_reader_that_is_open_sees_no_step_twice_after_a_resume(accumulators, tmp_path):
    first = TensorBoard(tmp_path)
    first.log(first.begin(RUN), lines(2, 4, 6))
    reader = accumulators.EventAccumulator(str(tmp_path / "tensorboard" / "fedavg-seed-0"))
    assert len(curve(reader)) == 3
    second = TensorBoard(tmp_path)
    opened = second.begin(RUN)
    second.log(opened, lines(2, 4))
    assert curve(reader) == [(2, 0.25), (4, 0.5)]
    second.log(opened, lines(6, 7))
    assert curve(reader) == [(2, 0.25), (4, 0.5), (6, 0.75), (7, 0.875)]
    anew = accumulators.EventAccumulator(str(tmp_path / "tensorboard" / "fedavg-seed-0"))
    assert curve(anew) == curve(reader)


def test_files_of_others_in_its_folder_are_kept(tmp_path):
    place = tmp_path / "tensorboard" / "fedavg-seed-0"
    place.mkdir(parents=True)
    theirs = place / "events.out.tfevents.0000000001.host.7.0"
    theirs.touch()
    TensorBoard(tmp_path).begin(RUN)
    assert theirs.exists()
