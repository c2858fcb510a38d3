"""The compiled library behind `convolution="onednn"`: an optional part, for CPUs.

It has oneDNN's convolutions, and the sums of batch normalisation.

    pip install 'fedjax_bal[onednn]'
    python -m fedjax_bal.models.onednn

The second line compiles it into the user's cache folder; it needs a C++ compiler such as g++. `--prefix DIR`
takes the oneDNN 3 that is installed there, a sequential build for instance, in place of the one of the first line.
"""
