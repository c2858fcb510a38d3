"""A configured comparison on disk: methods times seeds in one run folder that can be killed and resumed."""
