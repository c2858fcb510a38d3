"""The errors for data files that are missing, damaged or not what their name says."""


class DataError(ValueError):
    """A data set can't be read: the message names the file, what was expected, what was found, and what to do."""


class MissingError(DataError):
    """None of a data set's files was found; the message says which were looked for, and where."""
