"""Measures of the package's order, of the working tree or of commits side by side.

python tests/house.py                    # the working tree
python tests/house.py v1.0 HEAD          # two commits
"""

import ast
import contextlib
import importlib.util
import io
import itertools
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))
HERE = "working tree"
MOST_LINES = 25
LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> None:
    """Prints the table."""
    columns = []
    for name in sys.argv[1:] or [HERE]:
        with tree_of(name) as root:
            columns.append({"": name, **counts(root)})
    for row in columns[0]:
        cells = [str(column[row]).split("\n") for column in columns]
        for place, lines in enumerate(itertools.zip_longest(*cells, fillvalue="")):
            print(f"{'' if place else row:34}", *(f"{line:46}" for line in lines))


@contextlib.contextmanager
def tree_of(name: str) -> Iterator[Path]:
    """The files of a commit in a temporary folder, or those of the working tree."""
    if name == HERE:
        yield REPOSITORY
        return
    archive = subprocess.run(["git", "archive", name], cwd=REPOSITORY, check=True, stdout=subprocess.PIPE).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        yield Path(folder)


def counts(root: Path) -> dict[str, Any]:
    """The table's column for a tree: each measure's name and value."""
    kinds, lengths, arguments, classes, untyped = Counter(), Counter(), Counter(), Counter(), 0
    files = sorted((root / "fedjax_bal").rglob("*.py"))
    for file in files:
        text = file.read_text(encoding="utf-8")
        own = kinds_of_lines(text)
        kinds.update(own.values())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, FUNCTIONS):
                name = f"{node.name}, {file.parent.name}/{file.name}:{node.lineno}"
                lengths[name] = sum(own.get(line) == "code" for line in range(node.lineno, end(node)))
                given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                arguments[name] = sum(argument.arg not in ("self", "cls") for argument in given)
            elif isinstance(node, ast.ClassDef):
                classes[node.name] += 1
            elif isinstance(node, ast.Subscript):
                untyped += ast.unparse(node) == "dict[str, Any]"
    return {
        "files": len(files),
        **{f"{kind} lines": f"{kinds[kind]} ({kinds[kind] / kinds.total():.1%})" for kind in sorted(kinds)},
        f"functions over {MOST_LINES} code lines": sum(count > MOST_LINES for count in lengths.values()),
        "longest functions": "\n".join(f"{count} {name}" for name, count in lengths.most_common(5)),
        "longest argument lists": "\n".join(f"{count} {name}" for name, count in arguments.most_common(5)),
        "class names that are not unique": sum(count > 1 for count in classes.values()),
        **arrows(root),
        "dict[str, Any]": untyped,
        "YAML lines": sum(len(file.read_text().splitlines()) for file in (root / "configs").rglob("*.yaml")),
    }


def kinds_of_lines(text: str) -> dict[int, str]:
    """Maps the number of each line that isn't blank to code, comment or docstring."""
    kinds: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            kinds.setdefault(token.start[0], "comment")
        elif token.type not in LAYOUT:
            kinds |= dict.fromkeys(range(token.start[0], token.end[0] + 1), "code")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kinds |= dict.fromkeys(range(node.lineno, end(node)), "docstring")
    lines = text.splitlines()
    return {place: kind for place, kind in kinds.items() if lines[place - 1].strip()}


def end(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) + 1


def arrows(root: Path) -> dict[str, Any]:
    """Counts imports that break the rules of the tree's own `test_architecture.py`; "-" where there is none."""
    file, names = root / "tests" / "test_architecture.py", ("imports past a face", "imports against the direction")
    spec = importlib.util.spec_from_file_location("rules", file)
    if not file.exists() or spec is None or spec.loader is None:
        return dict.fromkeys(names, "-")
    rules = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rules)
    rules.ROOT = root / "fedjax_bal"
    past = sum(line[2] != f"fedjax_bal.{line[3]}" for line in rules.imports())
    back = sum(rules.FLOORS.index(line[3]) > rules.FLOORS.index(line[1]) for line in rules.imports())
    return dict(zip(names, (past, back), strict=True))


if __name__ == "__main__":
    main()
