"""Augmented copies of samples, added as rows to the clients that hold them."""

from collections.abc import Mapping
from typing import Annotated, Any

import jax
import numpy as np
from annotated_types import Le

from fedjax_bal.annotations import NonNegative, Seed, Share, Switch, check
from fedjax_bal.balance import random_matrices
from fedjax_bal.data.batches import make_copies
from fedjax_bal.data.inputs import check_images
from fedjax_bal.data.memory import available_bytes
from fedjax_bal.data.partition.dealing import MAX_ROWS
from fedjax_bal.jax_setup import package_settings, start_jax
from fedjax_bal.types import Federation, Warp

_MAPS = 2**14  # size of the table: more than the copies of a sample, small enough for the device
_FINENESS = 128  # a map's entries are multiples of 1/128
_BLOCK = 4096  # images made at a time
_RANGES = {
    "shift": Share,
    "rotate": Annotated[NonNegative, Le(360)],
    "shear": Annotated[NonNegative, Le(10)],
    "zoom": Annotated[NonNegative, Le(0.99)],
}
_ROW_BYTES = 8  # a row's number and the number of its copy
_WORK_BYTES = 72  # temporary memory for making a row


@package_settings()
def augment(
    federation: Federation,
    copies_per_class: np.ndarray | None = None,
    *,
    copies_per_row: np.ndarray | None = None,
    seed: int = 0,
    shift: float = 0.1,
    rotate: float = 15.0,
    shear: float = 0.2,
    zoom: float = 0.2,
    store: bool = True,
) -> Federation:
    """Gives each client copies of its samples, each under its own random affine map.

    The map of a copy follows from the seed, the sample's row number and the number of the copy, so that it is the same
    in every epoch and for every client. It comes from a table of 16,384 maps drawn from the ranges, their entries
    rounded to multiples of 1/128, so that 8-bit pixels are the same on every device.

    Args:
        federation: without copies; images `[D, H, W, K]` of bytes or floats.
        copies_per_class: `Int[C]`, copies of every sample, by class; from `balance.augmentation_counts`, say.
        copies_per_row: instead, `Int[R]`, copies of each of the federation's rows.
        seed: the seed of the maps, from 0 to 2**32 - 1.
        shift: largest shift, as a fraction of the side.
        rotate: largest rotation, in degrees.
        shear: largest shear, as a tangent.
        zoom: largest relative change of size, below 1.
        store: compute the pixels of all copies now, which takes memory, and not each time that they are drawn, which
            takes time; the pixels are the same.

    Returns:
        The federation with each copy after its original; class counts and clients' weights include copies.

    Raises:
        ValueError: copies have the wrong shape or type, or exceed memory; the federation has copies already, or has no
            images; or a value is out of range.

    Example:
        >>> from fedjax_bal.data import federate
        >>> images, labels = np.zeros((3, 8, 8, 1), np.uint8), np.array([0, 0, 1])
        >>> larger = augment(federate(images, labels, [np.arange(3)], 2), np.array([0, 2]))
        >>> larger.class_counts.tolist(), larger.copy.tolist(), len(larger.images)
        ([[2, 3]], [0, 0, 0, 1, 2], 5)

    References:
        Astraea (Duan et al., 2019), Algorithm 2 and section III-B.
    """
    if federation.warp is not None or np.any(federation.copy):
        raise ValueError("augment: received a federation that has copies; augment the original one, once")
    check_images("augment", federation.images)
    ranges = {"shift": shift, "rotate": rotate, "shear": shear, "zoom": zoom}
    asked = copy_options({"seed": seed, "store": store, **ranges})
    copies = _copies(federation, copies_per_class, copies_per_row)
    _check_room(federation, copies, asked["store"])
    if not copies.any():
        return federation
    start_jax()
    with jax.disable_jit(False):
        keys = jax.random.split(jax.random.key(asked["seed"]), _MAPS)
        sides = federation.images.shape[1:3]
        maps = np.asarray(random_matrices(keys, *sides, **{name: asked[name] for name in _RANGES}))
        maps = (np.round(maps * _FINENESS) / _FINENESS).astype(np.float32)
        larger = _with_copies(federation, copies)._replace(warp=Warp(np.uint32(asked["seed"]), maps))
        return _stored(larger) if asked["store"] else larger


def copy_options(options: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Validates `augment`'s options and returns them as plain values; `owner` precedes names in messages."""
    kinds = {"seed": Seed, "store": Switch, **_RANGES}
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    return {name: check(f"{owner}{name}", kind, given[name]) for name, kind in kinds.items()}


def extra_bytes(federation: Federation) -> int:
    """Returns the bytes of a federation's copies, one image each, even if their pixels are not stored."""
    image = int(np.prod(federation.images.shape[1:])) * federation.images.dtype.itemsize
    return int(np.count_nonzero(federation.copy)) * image


def _copies(federation: Federation, by_class: np.ndarray | None, by_row: np.ndarray | None) -> np.ndarray:
    """Returns the number of copies of each row, `Int64[R]`."""
    if (by_class is None) == (by_row is None):
        raise ValueError("augment: received both or none of copies_per_class and copies_per_row; give one of them")
    name, given = ("copies_per_row", by_row) if by_class is None else ("copies_per_class", by_class)
    wanted = (len(federation.rows) if by_class is None else federation.num_classes,)
    copies = np.asarray(given)
    if copies.shape != wanted or copies.dtype.kind not in "iu" or (copies < 0).any():
        raise ValueError(
            f"{name}: received shape {copies.shape} of {copies.dtype}, must be integers of shape {wanted}, 0 or more"
        )
    if copies.max(initial=0) > MAX_ROWS:
        raise ValueError(f"{name}: received {copies.max()} copies of a sample; at most {MAX_ROWS} rows are supported")
    copies = copies.astype(np.int64)
    return copies if by_class is None else copies[np.asarray(federation.labels)[federation.rows]]


def _check_room(federation: Federation, copies: np.ndarray, store: bool) -> None:
    """Raises `ValueError` for more copies than can be numbered or fit in memory, before they are made."""
    count = int(copies.sum())
    rows = len(copies) + count
    fewer = "ask for fewer copies (a smaller alpha, or max_copies)"
    if rows > MAX_ROWS:
        raise ValueError(f"copies: received {count:,} of them, which makes {rows:,} rows; at most {MAX_ROWS}: {fewer}")
    subject = "rows"
    taken = count * _ROW_BYTES
    without_pixels = rows * (_ROW_BYTES + _WORK_BYTES)
    needed = without_pixels
    if store:
        images = len(federation.labels)
        image = int(np.prod(federation.images.shape[1:])) * federation.images.dtype.itemsize
        most = np.zeros(images, np.int64)  # copies of each image: clients that share it share its copies
        np.maximum.at(most, federation.rows, copies)
        subject = "pixels"
        taken = int(most.sum()) * image
        needed += images * image + taken
    free = available_bytes()
    if count and free is not None and needed > free:
        remedy = f"{fewer}, or set store=False, which keeps no pixels of copies" if without_pixels <= free else fewer
        raise ValueError(
            f"copies: received {count:,} of them, whose {subject} take {taken / 1e9:.3g} GB; with all else that making "
            f"them takes it is {needed / 1e9:.3g} GB, but {free / 1e9:.3g} GB are free: {remedy}"
        )


def _with_copies(federation: Federation, copies: np.ndarray) -> Federation:
    # Each row is followed by its copies, numbered from 1; number 0 is the row itself.
    times = copies + 1
    starts = np.cumsum(times) - times
    numbers = np.arange(times.sum()) - np.repeat(starts, times)
    owner = np.repeat(np.arange(federation.num_clients), federation.sizes)
    classes = federation.num_classes
    cell = owner * classes + np.asarray(federation.labels)[federation.rows]
    counts = np.bincount(cell, weights=times, minlength=federation.num_clients * classes)
    return federation._replace(
        rows=np.repeat(federation.rows, times),
        offsets=np.append(0, np.cumsum(times))[federation.offsets].astype(np.int32),
        class_counts=counts.reshape(-1, classes).astype(np.int32),
        copy=numbers.astype(np.int32),
    )


def _stored(federation: Federation) -> Federation:
    """Adds the pixels of a federation's copies to its images."""
    # Clients that share a row share its copies: each pair of row and copy number is stored once.
    copies = federation.copy > 0
    pairs, number = np.unique(
        np.stack([federation.rows[copies], federation.copy[copies]], 1), axis=0, return_inverse=True
    )
    labels = np.asarray(federation.labels)
    rows = federation.rows.copy()
    rows[copies] = len(labels) + number.reshape(-1)

    images = np.asarray(federation.images)
    larger = np.empty((len(images) + len(pairs), *images.shape[1:]), images.dtype)
    larger[: len(images)] = images
    make = jax.jit(make_copies)
    for begin in range(0, len(pairs), _BLOCK):
        block = pairs[begin : begin + _BLOCK]
        # The last block is padded, so that all have the same shape and share one program.
        padded = np.pad(block, ((0, _BLOCK - len(block)), (0, 0)), mode="edge")
        start = len(images) + begin
        made = make(federation.warp, images[padded[:, 0]], *padded.T)
        larger[start : start + len(block)] = np.asarray(made)[: len(block)]
    labels = np.concatenate([labels, labels[pairs[:, 0]]])
    return federation._replace(images=larger, labels=labels, rows=rows, warp=None)
