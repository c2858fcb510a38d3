"""How fast it is: workloads, measurement and the tables of `fedjax-bal bench`."""
