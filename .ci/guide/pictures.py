"""Generates the pictures of the guide and the README, and the gallery's page.

python .ci/guide/pictures.py              # all; with the quickstart's run, a minute on two idle cores
python .ci/guide/pictures.py partitions   # or purpose, round, report, comparison
"""

import re
import sys
from pathlib import Path
from typing import Any

import gallery
import one_round
import purpose
import screens

from fedjax_bal.report import plots

PICTURES = Path(__file__).parents[2] / "fedjax_bal" / "guide" / "pictures"


def _partitions() -> None:
    gallery.write(PICTURES)


def _round() -> None:
    (PICTURES / "round.svg").write_text(one_round.picture(), encoding="utf-8")


def _purpose() -> None:
    (PICTURES / "purpose.svg").write_text(purpose.picture(), encoding="utf-8")


def _report() -> None:
    (PICTURES / "report.png").write_bytes(screens.report())


def _comparison() -> None:
    code = re.search(r"```python\n(.*?)```", (PICTURES.parent / "library.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code
    page: dict[str, Any] = {}
    exec(code[1], page)
    for name in ("curves", "classes"):
        document = plots.to_svg(page["result"].figure(name), f"A comparison in Python: {name}")
        (PICTURES / f"comparison_{name}.svg").write_text(document, encoding="utf-8")


MAKERS = {"purpose": _purpose, "partitions": _partitions, "round": _round, "report": _report, "comparison": _comparison}


def main(names: list[str]) -> None:
    """Generates the pictures with these names; all without names."""
    if unknown := set(names) - set(MAKERS):
        sys.exit(f"{', '.join(sorted(unknown))}: there are {', '.join(MAKERS)}")
    for name in names or MAKERS:
        MAKERS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
