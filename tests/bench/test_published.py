"""The published figures are those of the results, and stand beside a measurement only on the same kind of machine."""

import json
from pathlib import Path

import pytest

from fedjax_bal.bench import published
from fedjax_bal.bench.command import caption

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FILES = {
    "2 cores, AVX512": "cpu_avx512.json", "2 cores, AVX2": "cpu.json", "1 x H100": "h100.json", "1 x H200": "h200.json",
}  # fmt: skip


def results(kind):
    """Yields precision, workload and client updates per second of our package in a file of results."""
    content = json.loads((RESULTS / FILES[kind]).read_text())
    for record in content.get("speed", ()):
        yield record["precision"], record["workload"], record["client_updates_per_s"]
    for workload in content.get("summary", {}).get("workloads", ()):
        ours = next(each for each in workload["contestants"] if each["contestant"] == "fedjax-bal")
        yield "float32", workload["workload"], ours["median"]


@pytest.mark.parametrize("kind", published.PUBLISHED)
def test_each_published_figure_is_a_result_to_three_digits(kind):
    known = published.PUBLISHED[kind]
    measured = {}
    for precision, workload, updates in results(kind):
        measured.setdefault((precision, workload), []).append(updates)
    for precision, figures in known.updates.items():
        for workload, figure in figures.items():
            assert any(f"{each:.3g}" == f"{figure:.3g}" for each in measured[precision, workload]), (
                precision,
                workload,
            )
    assert json.loads((RESULTS / FILES[kind]).read_text())["commit"] in known.machine


def record(workload, **changes):
    return {
        "workload": workload, "device": "AMD EPYC, 2 cores", "platform": "cpu", "instruction_set": "AVX2", "devices": 2,
        "versions": {"jax": "1", "fedjax_bal": "2"}, "data": "random pixels", "memory_kind": "resident",
        "matmul_peak_flops_per_s": 1e11, "precision": "float32", "strategy": "map", "convolution": "builtin",
        "published": published.published_figure(workload, "float32", "2 cores, AVX2"),
    } | changes  # fmt: skip


def test_a_caption_says_how_each_workload_was_executed_and_what_was_published_on_such_a_machine():
    text = caption([record("W1"), record("W3", strategy="vmap", convolution=""), record("W4b")])
    assert "AMD EPYC, 2 cores with AVX2, 2 XLA devices" in text
    assert "strategy map, builtin convolutions: W1, W4b; strategy vmap: W3" in text
    assert "published: W1 17.9, W3 6,701 updates/s on two cores of an AMD EPYC with AVX2" in text


def test_another_kind_of_machine_has_no_published_figure():
    assert published.published_figure("W1", "float32", "4 cores, AVX2") is None
    assert "published" not in caption([record("W1", published=None)])


@pytest.mark.parametrize(("platform", "precision"), [("gpu", "float32"), ("gpu", "bfloat16"), ("cpu", "float32")])
def test_tensorfloat32_is_advised_on_gpus_in_float32_alone(platform, precision):
    text = caption([record("W1", platform=platform, precision=precision, instruction_set="")])
    assert ("tensorfloat32" in text) == (platform == "gpu" and precision == "float32")
