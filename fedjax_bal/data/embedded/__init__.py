"""The embedded data sets: a part of Fashion-MNIST, Shuttle, Letter Recognition."""
