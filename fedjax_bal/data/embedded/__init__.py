"""The embedded data set: a balanced part of Fashion-MNIST, and the script that makes it."""
