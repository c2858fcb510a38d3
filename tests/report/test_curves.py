"""The curves of a sweep in one table."""

import csv
import json

from fedjax_bal.report import build_sweep


def write_point(folder, losses, **more):
    folder.mkdir(parents=True)
    line = {"method": "fedavg", "seed": 1, "bytes_up": 1, "bytes_down": 1, "wall_s": 0.5, "chain_kls": [1.0], **more}
    lines = [{**line, "round": at + 1, "test_accuracy": 0.5, "test_loss": loss} for at, loss in enumerate(losses)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_every_evaluated_round_of_the_sweeps_own_points_is_a_row(tmp_path):
    out = tmp_path / "out"
    write_point(out / "points" / "lr=0.1", [2.0, 1.0])
    write_point(out / "points" / "lr=0.3", [3.0, None], macro_f1=0.25)
    write_point(out / "points" / "removed", [7.0])
    write_point(tmp_path / "elsewhere", [7.0])
    (out / "sweep.yaml").write_text("sweep: [{lr: [0.1, 0.3]}]\n")
    points = ("lr=0.1", "lr=0.3", "../../elsewhere", "lr=0.5")
    rows = [f"{place / 5 + 0.1:g},{point},fedavg,1,done,0.5,\n" for place, point in enumerate(points)]
    (out / "results.csv").write_text("lr,point,method,seed,status,final_accuracy,failure\n" + "".join(rows))
    build_sweep(out)
    with (out / "curves.csv").open() as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == [
        "lr", "point", "method", "seed", "round", "test_accuracy", "macro_f1", "test_loss", "bytes_up", "bytes_down",
        "wall_s",
    ]  # fmt: skip
    assert [(row["lr"], row["point"], row["round"], row["test_loss"], row["macro_f1"]) for row in found] == [
        ("0.1", "lr=0.1", "1", "2.0", ""),
        ("0.1", "lr=0.1", "2", "1.0", ""),
        ("0.3", "lr=0.3", "1", "3.0", "0.25"),
        ("0.3", "lr=0.3", "2", "", "0.25"),
    ]
