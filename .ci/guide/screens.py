"""Pictures of the quickstart's results: its terminal output and its report."""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

COLUMNS = 112
PAGE = 1000, 592  # down to the curves
DENSITY = 1.25
RUN = Path(__file__).parents[2] / "build" / "pictures" / "quickstart"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def terminal() -> str:
    """Runs the first command, or resumes it, and draws its table and the sentence below as SVG."""
    command = [sys.executable, "-m", "fedjax_bal", "run", "--plain", "--out", str(RUN)]
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    # Progress above the table, and time and folder below it, depend on this machine.
    table = re.search(r"\n( *\n.*?)\n[\d,]+ client updates in ", printed, re.DOTALL)
    if table is None:
        raise ValueError(f"no table in what {' '.join(command)} printed:\n{printed}")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print("$ fedjax-bal run", Text.from_ansi(table[1]), "", sep="\n", highlight=False)
    drawn = console.export_svg(title="", unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL).replace("Fira Code, monospace", "monospace")


def report() -> bytes:
    """Takes a PNG screenshot of the top of the report that `terminal` left."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise ValueError(f"the report's picture needs a browser: one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder, "page.png")
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--force-device-scale-factor={DENSITY}"]
        flags += [f"--user-data-dir={folder}", f"--window-size={PAGE[0]},{PAGE[1]}", f"--screenshot={taken}"]
        subprocess.run([browser, *flags, (RUN / "report.html").as_uri()], check=True, stderr=subprocess.DEVNULL)
        few = (
            Image.open(taken)
            .convert("RGB")
            .quantize(48, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
        )
        few.save(taken, optimize=True)
        return taken.read_bytes()
