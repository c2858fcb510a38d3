"""Writes the picture of a partition, or of a data set alone, to a file."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedjax_bal.files import write_atomically

if TYPE_CHECKING:
    from fedjax_bal.data import Description
    from fedjax_bal.types import Dataset


def write_partition_picture(file: Path, dataset: "Dataset", partition: "Description | None", title: str) -> None:
    """Draws the clients' samples of each class; without a partition the sizes of the classes alone.

    The file ends in `.png`, or in `.svg`; the title stands above.
    """
    import numpy as np

    from fedjax_bal.report.partition_plots import classes_picture, picture
    from fedjax_bal.report.svg import to_png, to_svg

    if partition is None:
        sizes = np.bincount(dataset.train_labels, minlength=len(dataset.class_names))
        figure = classes_picture(sizes, dataset.class_names, title)
    else:
        figure = picture(partition, dataset.class_names, title)
    if file.suffix.lower() == ".png":
        write_atomically(file, to_png(figure))
    else:
        words = "Clients against classes, and histograms of sizes and of divergence from even classes."
        write_atomically(file, to_svg(figure, "partition", title, words).encode())
