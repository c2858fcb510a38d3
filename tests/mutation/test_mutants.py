"""Mutants are what the campaign says they are; the campaign itself takes hours."""

import ast
import json
import queue
import subprocess
import sys
from pathlib import Path

import pytest
from mutation.campaign import ROOT, Failure, meet, nearest, stages, tables
from mutation.explained import EXPLAINED
from mutation.mutants import KINDS, PACKAGES, draw, mutants

CODE = {
    "sign": ("-a", ["a"]),
    "comparison": ("a < b", ["(a <= b)", "(a >= b)"]),
    "mask": ("jnp.where(m, a, b)", ["a", "b"]),
    "index": ("a[1:, place]", ["2", "(place - 1)"]),
    "constant": ("f(axis=0)", ["1"]),
    "swap": ("f(a, b)", ["f(b, a)"]),
    "term": ("a + b", ["a", "b"]),
}


def own(code):
    source = f'def g(x: int = 0):\n    """1 + 1."""\n    if x:\n        raise E(f"{{x + 1}}")\n    return {code}\n'
    return source.encode(), list(mutants(source.encode(), "own.py"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_change(kind):
    code, wanted = CODE[kind]
    source, found = own(code)
    assert [mutant.after for mutant in found if mutant.kind == kind] == wanted
    for mutant in found:  # nothing but what is returned changes: no default, text or message
        changed = mutant.applied(source)
        ast.parse(changed)
        assert changed != source and changed.splitlines()[:4] == source.splitlines()[:4]
        assert source[mutant.start : mutant.end].decode() == mutant.before and mutant.line == 5


def test_masks_are_factors_that_are_called_so():
    assert [mutant.after for mutant in own("a * ctx.real")[1] if mutant.kind == "mask"] == ["a"]
    assert [mutant.after for mutant in own("a * b")[1] if mutant.kind == "mask"] == []
    assert [mutant.after for mutant in own("max(a, b)")[1]] == []


def test_a_seed_draws_evenly_and_again():
    drawn = draw(ROOT, 0, 28)
    assert drawn == draw(ROOT, 0, 28) != draw(ROOT, 1, 28)
    assert [mutant.file.split("/")[1] for mutant in drawn[:4]] == list(PACKAGES)
    assert len({(mutant.file, mutant.line) for mutant in drawn}) == 28
    for mutant in drawn:
        ast.parse(mutant.applied((ROOT / mutant.file).read_bytes()))


def test_every_test_is_in_a_stage_and_none_in_two():
    file = "fedjax_bal/balance/prior.py"
    assert nearest(file)[:2] == [file, "tests/balance/test_prior.py"]
    made = stages(file, "everything", (False, True))
    assert [(name, slow) for name, slow, _ in made[::5]] == [("near", False), ("near", True)]
    assert "--ignore=tests/balance/test_prior.py" in made[1][2] and "tests/balance" in made[1][2]
    assert all(option.startswith("--ignore=") for option in made[4][2])
    assert made[5][2][:3] == ["--all", "-m", "slow"]


def test_what_is_explained_is_still_there():
    for file, text, change in EXPLAINED:
        found = [mutant for mutant in mutants((ROOT / file).read_bytes(), file) if mutant.text == text]
        assert change in [f"{mutant.before} -> {mutant.after}" for mutant in found], (file, text)


class Fake:
    """Copies whose tests fail in the second stage."""

    def __init__(self, place):
        self.free = queue.Queue()
        self.free.put(place)
        self.seen = []

    def first_failure(self, place, options, limit):
        self.seen.append((place / "own.py").read_text())
        return Failure("tests/test_own.py::test", "wrong") if len(self.seen) == 2 else None


def test_a_mutant_meets_its_stages_and_leaves_nothing(tmp_path):
    source, found = own("a + b")
    (tmp_path / "own.py").write_bytes(source)
    copies, rest = Fake(tmp_path), [("near", False, []), ("everything", False, []), ("near", True, [])]
    result = json.loads(json.dumps(meet(copies, found[0], rest, {})))
    assert copies.seen == [found[0].applied(source).decode()] * 2 and (tmp_path / "own.py").read_bytes() == source
    assert result["passed"] == ["near"] and result["caught"]["stage"] == "everything"
    left = result | {"file": "fedjax_bal/parts/own.py", "caught": None}
    text = tables([result | {"file": "fedjax_bal/parts/own.py"}, left], True)
    assert "| all | 2 | 1 | 0 | 1 | 0 |" in text and "| fedjax_bal/parts/own.py:5 |" in text


@pytest.mark.slow
def test_the_campaign_meets_a_mutant_in_a_copy(tmp_path):
    mutant = next(mutant for mutant in draw(ROOT, 0, 12) if "/balance/" in mutant.file)
    before = (ROOT / mutant.file).read_bytes()
    command = [sys.executable, str(Path(__file__).with_name("campaign.py")), "--mutants", "12", "--only", mutant.file]
    command += ["--jobs", "1", "--quick", "--depth", "near", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    result = json.loads((tmp_path / "results.json").read_text())[mutant.key]
    assert ended.returncode == (0 if result["caught"] else 1), ended
    assert result["caught"] or result["passed"] == ["near"]
    assert f"{mutant.file}:{mutant.line} " in ended.stderr and "not all stages" in ended.stdout
    assert before == (ROOT / mutant.file).read_bytes() == (tmp_path / "copy-0" / mutant.file).read_bytes()
