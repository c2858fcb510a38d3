"""Generates the pictures of the guide and the README, and the gallery's page.

python .ci/guide/pictures.py              # all; with the quickstart's run, a minute on two idle cores
python .ci/guide/pictures.py partitions   # or purpose, round, report
"""

import sys
from pathlib import Path

import gallery
import one_round
import purpose
import screens

PICTURES = Path(__file__).parents[2] / "fedjax_bal" / "guide" / "pictures"


def _partitions() -> None:
    gallery.write(PICTURES)


def _round() -> None:
    (PICTURES / "round.svg").write_text(one_round.picture(), encoding="utf-8")


def _purpose() -> None:
    (PICTURES / "purpose.svg").write_text(purpose.picture(), encoding="utf-8")


def _report() -> None:
    (PICTURES / "report.png").write_bytes(screens.report())


MAKERS = {"purpose": _purpose, "partitions": _partitions, "round": _round, "report": _report}


def main(names: list[str]) -> None:
    """Generates the pictures with these names; all without names."""
    if unknown := set(names) - set(MAKERS):
        sys.exit(f"{', '.join(sorted(unknown))}: there are {', '.join(MAKERS)}")
    for name in names or MAKERS:
        MAKERS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
