"""Data that comes with the package: a balanced part of Fashion-MNIST, and the script that makes it."""
