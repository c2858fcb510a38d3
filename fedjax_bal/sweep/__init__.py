"""Sweeps: one file, one command, as few programs as can be, one table and one page at the end."""
