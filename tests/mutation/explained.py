"""Mutants that compute the same as the original: file, expression, what took its place, and why it is the same."""

EXPLAINED: dict[tuple[str, str, str], str] = {}
