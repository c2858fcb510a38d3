"""Figure 3 of IWDS: the balance of two classes of different size, by beta.

    python benchmarks/iwds_figure3.py --out DIR

Writes iwds_figure3.csv, .svg and .png. The ordinate is the ratio q1 / q2 of the probabilities of drawing the two
classes, N1 (1 - beta^N2) / (N2 (1 - beta^N1)): N1 / N2 with uniform sampling (beta 0), 1 if both classes are drawn
equally often (beta near 1). Nothing is trained. The poster shows a curve without naming its classes; here are those of
a client with an LLT partition of CIFAR-10 (alpha 0.9 and 0.99) and two milder pairs. A few seconds on one core.
"""

import argparse
import csv
from pathlib import Path

import jax
import numpy as np

from fedjax_bal.balance import effective_number_weights

PAIRS = {
    "4950 : 5.6 (LLT 0.99)": (4950.0, 50 / 9),
    "4500 : 55.6 (LLT 0.9)": (4500.0, 500 / 9),
    "1000 : 100": (1000.0, 100.0),
    "500 : 250": (500.0, 250.0),
}
SCHEDULE = {"beta_0": 0.9999, "beta_m": 0.8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder for the three files")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    betas = grid()
    curves = {name: ratios(betas, counts) for name, counts in PAIRS.items()}
    write_csv(folder / "iwds_figure3.csv", betas, curves)
    draw(folder / "iwds_figure3", betas, curves)
    print(f"written: {folder}/iwds_figure3.csv, .svg, .png")


def grid(points: int = 241, nearest: float = 1e-6) -> np.ndarray:
    """Values of beta from 0 to 1 - nearest, evenly spaced in log(1 - beta)."""
    return 1.0 - np.geomspace(1.0, nearest, points)


def ratios(betas: np.ndarray, counts: tuple[float, float]) -> np.ndarray:
    """Computes q1 / q2 for each beta in double precision, because near 1 only the difference 1 - beta matters."""
    with jax.enable_x64(True):
        sizes = np.asarray(counts, np.float64)
        weights = jax.vmap(lambda beta: effective_number_weights(sizes, beta))(np.asarray(betas, np.float64))
        drawn = sizes * np.asarray(weights)
    return drawn[:, 0] / drawn[:, 1]


def write_csv(path: Path, betas: np.ndarray, curves: dict[str, np.ndarray]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["beta", *curves])
        table.writerows(zip(betas.tolist(), *(curve.tolist() for curve in curves.values()), strict=True))


def draw(path: Path, betas: np.ndarray, curves: dict[str, np.ndarray]) -> None:
    """Writes the figure as SVG and PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.loglog(1 - betas, curve, label=name)
    for name, beta in SCHEDULE.items():
        axes.axvline(1 - beta, color="0.6", linestyle=":", linewidth=1)
        offset = {"xytext": (-4, 0), "textcoords": "offset points", "rotation": 90, "ha": "right", "va": "top"}
        axes.annotate(f"{name} = {beta}", (1 - beta, 450), **offset, color="0.4", fontsize=8)
    ticks = [0, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999]
    axes.set_xticks([1 - beta for beta in ticks], [f"{beta:g}" for beta in ticks])
    axes.set_xlim(1, 1 - betas[-1])
    axes.set_ylim(0.8, 1200)
    axes.set_yticks([1, 2, 10, 81, 891], ["1", "2", "10", "81", "891"])
    axes.minorticks_off()
    axes.set(xlabel="beta (spaced by 1 - beta)", ylabel="q(c1) / q(c2)", title="Sampling probabilities of two classes")
    axes.grid(alpha=0.3)
    axes.legend(title="samples of c1 : c2", frameon=False)
    for ending in ("svg", "png"):
        figure.savefig(path.with_name(f"{path.name}.{ending}"), dpi=150)


if __name__ == "__main__":
    main()
