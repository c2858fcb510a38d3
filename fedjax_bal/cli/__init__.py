"""The command line: `app` declares the commands, the other files hold their work."""

from fedjax_bal.cli.app import main
