"""The rules of imports: packages import only from those below them, and only from their faces."""

import ast
import graphlib
from functools import cache
from pathlib import Path

import fedjax_bal

ROOT = Path(fedjax_bal.__file__).parent
# From the ground up: a package imports only from those before it.
FLOORS = (
    *(
        "_version",
        "xla_flags",
        "jax_setup",
        "errors",
        "registry",
        "files",
        "status",
        "caches",
        "target",
        "balance",
        "types",
    ),
    *("validate", "annotations"),
    *("optim", "models", "data", "selection", "methods", "parts", "recipes", "metrics", "options", "engine.processes"),
    *("engine.device", "engine.reference", "engine.host"),
    *("analyses", "config", "plugins"),
    *("lab", "report", "testing", "bench", "cli", "__main__"),
    "contrib",
)


def package_of(module: str) -> str | None:
    return next((floor for floor in FLOORS if f"{module}.".startswith(f"fedjax_bal.{floor}.")), None)


@cache
def imports() -> list[tuple[str, str, str, str]]:
    """Importing file, its package, the module that is named, and that module's package."""
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        own = ".".join(("fedjax_bal", *file.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file}:{node.lineno}: a relative import"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedjax_bal."):
                origin, where = package_of(own), package_of(node.module)
                if origin and where and origin != where:
                    found.append((f"{file.relative_to(ROOT)}:{node.lineno}", origin, node.module, where))
    return found


def test_every_file_stands_on_a_floor():
    files = [".".join(("fedjax_bal", *file.relative_to(ROOT).with_suffix("").parts)) for file in ROOT.rglob("*.py")]
    between = ("fedjax_bal.__init__", "fedjax_bal.engine.__init__")
    assert [file for file in files if package_of(file) is None and file not in between] == []


def test_imports_point_one_way():
    back = [line for line in imports() if FLOORS.index(line[3]) > FLOORS.index(line[1])]
    assert back == []


def test_packages_import_each_other_through_their_faces():
    """`parts` and `recipes` are the faces of `methods`: they alone import from its files, and others from them.

    The plug-ins that come along may use any file, as those of users may.
    """
    core = [line for line in imports() if line[1] != "contrib"]
    past = [line for line in core if line[2] != f"fedjax_bal.{line[3]}" and line[1] not in ("parts", "recipes")]
    assert past == []
    assert {line[1] for line in core if line[3] == "methods"} == {"parts", "recipes"}


def test_nothing_imports_the_plugins_that_come_along():
    """They are loaded as users' plug-ins are, with `--plugin`, so that the core stays whole without them."""
    users = []
    for file in sorted(ROOT.rglob("*.py")):
        if file.is_relative_to(ROOT / "contrib"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            users += [f"{file}:{node.lineno}" for name in names if f"{name}.".startswith("fedjax_bal.contrib.")]
    assert users == []


def test_the_files_of_the_lab_import_each_other_without_a_circle():
    graph = {}
    for file in (ROOT / "lab").glob("[!_]*.py"):
        lines = [
            node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
        ]
        within = [line for line in lines if f"{line.module}.".startswith("fedjax_bal.lab.")]
        names = [line.module.split(".")[2:] or [name.name for name in line.names] for line in within]
        graph[file.stem] = {name for some in names for name in some}
    assert graph["compare"] > {"loop", "run"}
    graphlib.TopologicalSorter(graph).prepare()
