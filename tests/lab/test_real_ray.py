"""A sweep on a Ray of this machine's own, a worker of which is killed while it trains."""

import os
import signal

import pytest
from small_sweep import FEDAVG, carry, outcome, sweep

from fedjax_bal.lab.ray_cluster import RayBackend, connected

RATES = "sweep: [{training.optimizer.learning_rate: [0.05, 0.1, 0.2, 0.4]}]"


@pytest.mark.nightly
def test_a_worker_is_killed_and_all_comes_to_the_same(tmp_path):
    pytest.importorskip("ray", reason="the extra cluster is not installed")
    wanted, killed = sweep(tmp_path, RATES, FEDAVG), []
    there, _, _ = carry(wanted, tmp_path / "here", most=2)
    with connected(None) as ray:
        cluster = RayBackend(ray, 1, None)

        def kill_one():
            trained = any(file.stat().st_size for file in (tmp_path / "out").glob("points/*/metrics.jsonl"))
            busy = [remote.process.pid for remote in cluster.at_work.values() if remote.process]
            if busy and trained and not killed:
                killed.append(busy[0])
                os.kill(killed[0], signal.SIGKILL)
            return False

        rows, stopped, said = carry(wanted, tmp_path / "out", most=2, backend=cluster, should_stop=kill_one)
    assert killed and not stopped
    assert said.count("its worker was killed, or its machine is gone; resuming after round") == 1
    assert [row["status"] for row in rows] == ["done"] * 4
    assert [row["final_accuracy"] for row in rows] == [row["final_accuracy"] for row in there]
    assert outcome(tmp_path / "out") == outcome(tmp_path / "here")
