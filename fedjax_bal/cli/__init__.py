"""The command line: `start` is the entry point, `app` declares the commands, and the other modules implement them."""

from fedjax_bal.cli.start import main
