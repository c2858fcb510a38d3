"""How many small faults the tests find: 120 mutants of the package, one at a time, against the tests near each.

python tests/mutants.py RESULTS                   # draws them, and writes a line of JSON for each
python tests/mutants.py RESULTS --first BEFORE    # those of an earlier run, first against what caught them then

Called again, it goes on where it was. cosmic-ray and mutmut know one test command for all mutants; ours takes minutes.
What survives may still be caught by a test that is further away.
"""

import argparse
import ast
import contextlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import flax  # noqa: F401
import jax  # noqa: F401
import optax  # noqa: F401
import pytest
import scipy.stats  # noqa: F401

PACKAGES = {"balance": 17, "methods": 18, "engine": 17, "selection": 17, "data": 17, "metrics": 17, "lab": 17}
KINDS = {"comparison": 2, "sign": 2, "constant": 2, "term": 2, "arguments": 1}
"""How often; swapped arguments mostly fail at once."""
SECONDS = 100
"""Of the processor, for a call of pytest, so that a busy machine catches no more."""
TURNED = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
SIGNS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
SYMMETRIC = {"isinstance", "issubclass", "max", "min", "maximum", "minimum", "logical_and", "logical_or", "zip"}
BATTERIES = ("golden/test_golden", "testing/test_battery", "engine/test_identities", "engine/test_reference")
CASES = ("fedavg", "scaffold", "rebafl", "fedbuff", "astraea", "power_of_choice", "evaluation")
"""Golden states, and recipes of the battery, in which faults outside of a method are looked for."""


def changes(node):
    """The kinds of mutants that a node has, and what each puts in its place."""
    match node:
        case ast.Compare(left, [operator], right):
            for other in TURNED[type(operator)]:
                yield "comparison", ast.Compare(left, [other()], right)
        case ast.BinOp(left, operator, right) if type(operator) in SIGNS:
            if not any(isinstance(side, ast.List | ast.Tuple | ast.JoinedStr) for side in (left, right)):
                yield "sign", ast.BinOp(left, SIGNS[type(operator)](), right)
                if isinstance(operator, ast.Add | ast.Sub):
                    yield "term", left
        case ast.UnaryOp(ast.USub(), operand):
            yield "sign", operand
        case ast.Constant(value) if type(value) is int:
            yield "constant", ast.Constant(value + 1)
        case ast.Call(function, values, named) if ast.unparse(function).split(".")[-1] not in SYMMETRIC:
            for place, (one, two) in enumerate(itertools.pairwise(values)):
                if isinstance(one, ast.Name) and isinstance(two, ast.Name):
                    yield "arguments", ast.Call(function, [*values[:place], two, one, *values[place + 2 :]], named)


def mutants_of(tree, file):
    """All mutants of a file, but for messages, annotations, decorators and what is outside of functions and classes."""
    source, found, seen = (tree / file).read_bytes(), [], Counter()
    starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]

    def visit(node, scope):
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            return
        for kind, new in changes(node) if scope else ():
            begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            about = {"file": file, "scope": scope, "kind": kind, "before": source[begin:end].decode()}
            about["after"] = f"({ast.unparse(new)})"
            key = tuple(about.values())
            found.append({**about, "occurrence": seen[key], "line": node.lineno, "span": [begin, end]})
            seen[key] += 1
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            scope = f"{scope}.{node.name}".lstrip(".")
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child, scope)

    visit(ast.parse(source), "")
    return found


def drawn(tree):
    """The mutants of a tree, as many a package as PACKAGES says."""
    for package, number in PACKAGES.items():
        rng, kinds = random.Random(f"60 {package}"), {}
        files = sorted(path.relative_to(tree).as_posix() for path in (tree / "fedjax_bal" / package).rglob("*.py"))
        for mutant in itertools.chain.from_iterable(mutants_of(tree, file) for file in files):
            kinds.setdefault(mutant["kind"], []).append(mutant)
        for _ in range(number):
            of_kind = kinds[rng.choices(list(KINDS), KINDS.values())[0]]
            yield of_kind.pop(rng.randrange(len(of_kind)))


def same(mutant):
    """What identifies a mutant, whatever its line."""
    return tuple(mutant[key] for key in ("file", "scope", "kind", "before", "after", "occurrence"))


def near(tree, file):
    """The three test files nearest to a file: that of its name, those that import it, those that name what it has."""
    package, stem = file.split("/")[1], Path(file).stem
    module = file.removesuffix(".py").replace("/", ".")
    public = [node.name for node in ast.parse((tree / file).read_bytes()).body if hasattr(node, "name")]
    names = re.compile(rf"\b(?:{'|'.join([stem, *(name for name in public if name[0] != '_')])})\b")
    imports = re.compile(rf"{re.escape(module)}\b|from {re.escape(module.rpartition('.')[0])} import .*\b{stem}\b")
    ranks = {}
    for test in sorted((tree / "tests").rglob("test_*.py")):
        text, mirrors = test.read_text(), package in test.parts
        imported = bool(imports.search(text))
        rank = (
            mirrors and test.stem == f"test_{stem}",
            mirrors and imported,
            imported,
            mirrors * len(names.findall(text)),
        )
        if any(rank):
            ranks[test.relative_to(tree).as_posix()] = rank
    every = sorted(path.relative_to(tree).as_posix() for path in (tree / "tests" / package).glob("test_*.py"))
    return sorted(ranks, key=ranks.get, reverse=True)[:3] or every


def batteries(tree, file):
    """Arguments of pytest for golden states and batteries: of a method's own recipes, or of a few."""
    own = re.findall(r"^@recipe\(.*\)\ndef (\w+)", (tree / file).read_text(), re.M)
    names = " or ".join(f"[{name}]" for name in own or CASES)
    number = 2 if own else 4 if file.split("/")[1] in ("balance", "methods", "engine") else 1
    tests = [f"tests/{battery}.py" for battery in BATTERIES[:number]]
    return [*tests, "-k", f"{names} or test_identities or test_reference"]


def run(tree, *arguments):
    """The first test that fails, "" for none, and None where none has that name or time is up."""
    cache = Path(tempfile.gettempdir(), "cache-mutants")
    options = ["-x", "-n", "0", "-rfE", "--tb=no", "--hypothesis-seed=0", "-o", f"cache_dir={cache}", *arguments]
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()  # jax is imported once, and has not started
        if not child:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            signal.alarm(10 * SECONDS)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os.chdir(tree)
            os.environ["PYTHONPATH"] = sys.path[0] = str(tree)
            code = pytest.main(options)
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what tests have started
        output.seek(0)
        text = output.read()
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.M)
    if failed or code in (0, 5):
        return failed[1] if failed else ""
    unknown = code in (pytest.ExitCode.USAGE_ERROR, -signal.SIGXCPU, -signal.SIGKILL, -signal.SIGALRM)
    return None if unknown else f"pytest ended with {code}"


def examine(tree, mutant, before):
    """Runs tests against a mutant of a copy of the tree; returns what caught it, or "", and what was out of time."""
    quick = [*near(tree, mutant["file"]), mutant["file"]]
    commands = [["--all", *quick], ["--all", *batteries(tree, mutant["file"])]]
    if "/engine/" in mutant["file"]:  # the batteries are the faster ones
        commands = [quick, *reversed(commands)]
    if before:
        commands.insert(0, ["--all", before])
    file, (begin, end), late = tree / mutant["file"], mutant["span"], []
    original = file.read_bytes()
    try:
        file.write_bytes(original[:begin] + mutant["after"].encode() + original[end:])
        for command in commands:
            caught = run(tree, *command)
            if caught:
                return caught, []
            if caught is None and before not in command:
                late.append(" ".join(command))
        return "", late
    finally:
        file.write_bytes(original)


def main():
    """Draws, applies and records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tests", type=Path, default=Path(__file__).parents[1], metavar="TREE", help="other sources")
    parser.add_argument("--first", type=Path, metavar="BEFORE", help="the results of an earlier run")
    options = parser.parse_args()
    read = lambda path: [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []
    results, earlier = read(options.results), read(options.first)
    done = {same(result) for result in results}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        shutil.copytree(options.tests, tree, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        for wanted in earlier or list(drawn(tree)):
            if same(wanted) in done:
                continue
            begun, found = time.time(), []
            if (tree / wanted["file"]).exists():
                found = [mutant for mutant in mutants_of(tree, wanted["file"]) if same(mutant) == same(wanted)]
            test, late = examine(tree, found[0], wanted.get("test")) if found else ("", ["its code has changed"])
            seconds = round(time.time() - begun, 1)
            results.append({**wanted, **(found or [{}])[0], "test": test, "late": late, "seconds": seconds})
            with options.results.open("a") as file:
                print(json.dumps(results[-1]), file=file)
            print(f"{len(results)}: {wanted['file']}:{wanted['line']} {test or late or 'survives'}", flush=True)
    for package in PACKAGES:
        own = [result for result in results if result["file"].split("/")[1] == package]
        left = [result for result in own if not result["test"]]
        print(f"{package:10} {len(own):3} drawn {len(own) - len(left):3} caught")
        for result in left:
            print("    {file}:{line} {kind}: {before} -> {after} {late}".format(**result))


if __name__ == "__main__":
    main()
