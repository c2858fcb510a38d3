"""The stubs of `fedjax_bal.parts` and `fedjax_bal.recipes`, by which editors and type checkers know the methods.

python tests/stubs.py        # writes them; needed when a recipe or a part has another name
"""

from pathlib import Path
from types import ModuleType

from fedjax_bal import parts, recipes
from fedjax_bal.methods import MODULES

FACES = (parts, recipes)


def stub(face: ModuleType) -> str:
    """A module's docstring, and imports of its public names, each from the file that defines it."""
    lines = []
    for name in face.__all__:
        thing = getattr(face, name)
        home = thing.__module__ if callable(thing) else _home(name)
        kind = 0 if name.isupper() else 1 if isinstance(thing, type) else 2
        lines.append((home, kind, name))
    imports = (f"from {home} import {name} as {name}\n" for home, _, name in sorted(lines))
    return f'# Written by tests/stubs.py.\n"""{face.__doc__}"""\n\n{"".join(imports)}'


def _home(constant: str) -> str:
    """The file that defines a constant."""
    defines = f"\n{constant}"
    files = [module.__name__ for module in MODULES if defines in Path(module.__file__ or "").read_text("utf-8")]
    return files[0] if files else "fedjax_bal.methods"


def file_of(face: ModuleType) -> Path:
    return Path(face.__file__ or "").with_suffix(".pyi")


if __name__ == "__main__":
    for face in FACES:
        file_of(face).write_text(stub(face), "utf-8")
