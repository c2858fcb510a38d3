"""Benchmarks: workloads, measurement and the tables of `fedjax-bal bench`."""

from fedjax_bal.bench.cases import BenchOptions
from fedjax_bal.bench.command import bench_command
