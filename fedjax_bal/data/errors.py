"""The error for data files that are missing, damaged or not what their name says."""


class DataError(ValueError):
    """A data set can't be read: the message names the file, what was expected, what was found, and what to do.

    Example:
        >>> raise DataError("labels.idx: expected 10 bytes, found 9; fetch the file again.")
        Traceback (most recent call last):
        ...
        fedjax_bal.data.errors.DataError: labels.idx: expected 10 bytes, found 9; fetch the file again.
    """


class MissingError(DataError):
    """A data set's files are not there at all; the message says what was looked for, where."""
