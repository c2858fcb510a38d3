"""`python -m fedjax_bal` is the command line."""

from fedjax_bal.cli import main

main()
