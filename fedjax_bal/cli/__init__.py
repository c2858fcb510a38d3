"""The command line: `start` begins it, `app` declares the commands, the other files hold their work."""

from fedjax_bal.cli.start import main
