"""Entry point of `python -m fedjax_bal`: the command line."""

from fedjax_bal.cli import main

main()
