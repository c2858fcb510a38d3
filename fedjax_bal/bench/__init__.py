"""Benchmarks: workloads, measurement and the tables of `fedjax-bal bench`."""

from fedjax_bal.bench.command import BenchOptions, bench_command
