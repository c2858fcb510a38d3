"""What the commands of `fedjax-bal` do; `fedjax_bal.cli` declares them."""
