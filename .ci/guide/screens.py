"""A picture of the quickstart's report."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PAGE = 1000, 760  # down to the curves
DENSITY = 1.25
RUN = Path(__file__).parents[2] / "build" / "pictures" / "quickstart"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def report() -> bytes:
    """Runs the first command, or resumes it, and takes a PNG screenshot of the top of its report."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise ValueError(f"the report's picture needs a browser: one of {', '.join(BROWSERS)}")
    subprocess.run([sys.executable, "-m", "fedjax_bal", "run", "--plain", "--out", str(RUN)], check=True)
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
