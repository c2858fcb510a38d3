"""Where the groups of a sweep are trained."""
