"""Measures of the package's size and order, of the working tree or of two commits side by side. No test enforces them.

python tests/house.py                    # the working tree
python tests/house.py v1.0 HEAD          # two commits, "before > after"
"""

import ast
import contextlib
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
HERE = "working tree"
NO_CODE = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
COLUMNS = ("files", "code", "docstring", "comment", "comments per 100", "imports %", "packed", "used once")
ADDITIONS = {
    "a method: FedLC": r"fedlc",
    "an option of the engine: rounds_per_dispatch": r"rounds_per_dispatch",
    "a metric on the device: local_test_accuracy": r"local_test_accuracy",
    "a data set with its own files: SVHN": r"svhn",
    "a partition: quantity": r"quantity_skew|[\"']quantity[\"']|\bquantity\(",
}
"""Things that a contributor could have added, and what every file that had to know of them mentions."""


def main() -> None:
    """Prints a table of the packages and one of the additions."""
    measured = []
    for name in sys.argv[1:] or [HERE]:
        with tree_of(name) as root:
            measured.append((packages(root), additions(root)))
    rows = dict.fromkeys(row for sizes, _ in measured for row in sizes)
    print(f"{'':22}", *(f"{name:>18}" for name in COLUMNS))
    for row in rows:
        cells = [[sizes.get(row, {}).get(column, "-") for sizes, _ in measured] for column in COLUMNS]
        print(f"{row:22}", *(f"{' > '.join(map(str, cell)):>18}" for cell in cells))
    print("\nfiles that mention it")
    for row in ADDITIONS:
        print(f"{row:46}", " > ".join(str(found[row]) for _, found in measured))


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


def packages(root: Path) -> dict[str, dict[str, object]]:
    """Maps each package, the whole, and the tests to their measures."""
    counts: dict[str, Counter[str]] = {}
    for part in ("fedjax_bal", "tests"):
        texts = {file: file.read_text(encoding="utf-8") for file in sorted((root / part).rglob("*.py"))}
        words = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
        for file, text in texts.items():
            inner = file.relative_to(root / part)
            package = str(inner.parts[0]) if len(inner.parts) > 1 else "top level"
            for row in (package, "fedjax_bal, all") if part == "fedjax_bal" else ("tests, all",):
                counts.setdefault(row, Counter()).update(measures(text, words))
    last = ("fedjax_bal, all", "tests, all")
    return {row: shown(counts[row]) for row in (*sorted(counts.keys() - set(last)), *last)}


def measures(text: str, words: Counter[str]) -> Counter[str]:
    """The counts of a file; `words` are those of all files of the package."""
    kinds = kinds_of_lines(text)
    found = Counter(kinds.values())
    found["files"] = 1
    # A comment at the end of a line of code counts as a comment, too.
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found["reasons"] = sum(token.type == tokenize.COMMENT for token in tokens)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found["import lines"] += end(node) - node.lineno
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            # A swap gives the same names back; other pairs are two statements on a line.
            names, values = (ast.unparse(side).strip("()").split(", ") for side in (node.targets[0], node.value))
            found["packed"] += isinstance(node.targets[0], ast.Tuple) and set(names) != set(values)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("_") and not node.name.endswith("__"):
            found["used once"] += words[node.name] == 2
    return found


def shown(found: Counter[str]) -> dict[str, object]:
    rates = {
        "comments per 100": f"{100 * found['reasons'] / found['code']:.1f}",
        "imports %": f"{100 * found['import lines'] / found['code']:.0f}",
    }
    return {column: rates.get(column, found[column]) for column in COLUMNS}


def kinds_of_lines(text: str) -> dict[int, str]:
    """Maps the number of each line that isn't blank to code, comment or docstring."""
    kinds: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            kinds.setdefault(token.start[0], "comment")
        elif token.type not in NO_CODE:
            kinds |= dict.fromkeys(range(token.start[0], token.end[0] + 1), "code")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kinds |= dict.fromkeys(range(node.lineno, end(node)), "docstring")
    lines = text.splitlines()
    return {place: kind for place, kind in kinds.items() if lines[place - 1].strip()}


def end(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) + 1


def additions(root: Path) -> dict[str, int]:
    """How many files of the package mention each of ADDITIONS."""
    files = [file for file in (root / "fedjax_bal").rglob("*") if file.suffix in (".py", ".bib")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    return {row: sum(bool(re.search(word, text, re.I)) for text in texts) for row, word in ADDITIONS.items()}


if __name__ == "__main__":
    main()
