"""How often each class of a set of handwritten characters occurs where people write English."""

import numpy as np

from fedjax_bal.data.checks import checked_count

_COMMON = {"e": 12.70, "t": 9.06, "a": 8.17, "o": 7.51, "i": 6.97, "n": 6.75, "s": 6.33, "h": 6.09, "r": 5.99}
_USUAL = {"d": 4.25, "l": 4.03, "c": 2.78, "u": 2.76, "m": 2.41, "w": 2.36, "f": 2.23, "g": 2.02, "y": 1.97}
_SELDOM = {"p": 1.93, "b": 1.49, "v": 0.98, "k": 0.77, "j": 0.15, "x": 0.15, "q": 0.095, "z": 0.074}
_PERCENT = _COMMON | _USUAL | _SELDOM
_DIGITS = "0123456789"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "abdefghnqrt"  # the other small letters are merged with the capitals
EMNIST_CLASSES = _DIGITS + _LETTERS
"""The 47 classes of EMNIST Balanced and ByMerge, in order."""
_RARE = 0.015


def letter_shares(num_classes: int, digits: str = "uniform", case: str = "insensitive") -> np.ndarray:
    r"""Shares of the classes when letters occur as often as in English text.

    For 47 classes, those of EMNIST Balanced: a letter class has its letter's frequency, whether it is a capital or
    not, and the letter classes together own 37/47, each digit 1/47. The divergence from uniform is 0.265 nats. The
    rarest classes are then Z, Q, q, J, X and K; in Astraea's Fig. 1c six classes are not learnt, and digits are.

    For any other number C of classes: the 26 frequencies in descending order, of which those at the ranks
    round(25 i / (C - 1)), i = 0..C-1, are taken and normalised (a half goes to the even rank); the first class is the
    most frequent one.

    Args:
        num_classes: C.
        digits: what the ten digits own: `"uniform"`, `"rare"` (1.5 % together) or `"none"`; the divergence from
            uniform is then 0.512 nats for rare, and 0.576 for none: 0.336 over the letters alone.
        case: `"insensitive"`, or `"split"`, where capital and small letter, if they are two classes, have half of
            their letter's frequency each.

    Returns:
        `Float[C]` that sum to 1.

    Raises:
        ValueError: an unknown word, or one of the options for a number of classes other than 47.

    Example:
        >>> shares = letter_shares(47)
        >>> float((shares * np.log(47 * shares)).sum().round(3))
        0.265
        >>> letter_shares(3).round(3).tolist()
        [0.818, 0.178, 0.005]

    References:
        Astraea, section II-B: "the frequency of the English letters, which is obtained through a corpus of the Simple
        English Wikipedia". The counts of that corpus are not published; these are common figures for English text.
    """
    num_classes = checked_count("num_classes", num_classes)
    if digits not in ("uniform", "rare", "none"):
        raise ValueError(f"digits={digits!r}; expected 'uniform', 'rare' or 'none'.")
    if case not in ("insensitive", "split"):
        raise ValueError(f"case={case!r}; expected 'insensitive' or 'split'.")
    if num_classes == len(EMNIST_CLASSES):
        return _emnist_shares(digits, case)
    if (digits, case) != ("uniform", "insensitive"):
        raise ValueError(
            f"digits={digits!r} and case={case!r} for {num_classes} classes; they are for EMNIST's 47: omit them."
        )
    return _shares_by_rank(num_classes)


def _emnist_shares(digits: str, case: str) -> np.ndarray:
    words = _LETTERS.lower()
    percent = np.array([_PERCENT[letter] / (words.count(letter) if case == "split" else 1) for letter in words])
    together = {"uniform": len(_DIGITS) / len(EMNIST_CLASSES), "rare": _RARE, "none": 0.0}[digits]
    return np.concatenate([np.full(len(_DIGITS), together / len(_DIGITS)), (1 - together) * percent / percent.sum()])


def _shares_by_rank(num_classes: int) -> np.ndarray:
    descending = np.sort(list(_PERCENT.values()))[::-1]
    percent = descending[np.rint(np.linspace(0, len(descending) - 1, num_classes)).astype(int)]
    return percent / percent.sum()
