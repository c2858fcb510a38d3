"""The command line: `app` declares the commands, the other files hold what they do."""

from fedjax_bal.cli.app import main

__all__ = ["main"]
