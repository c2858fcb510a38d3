"""oneDNN's convolutions for `convolution="onednn"`: an optional, compiled part, for CPUs.

    pip install 'fedjax_bal[onednn]'
    python -m fedjax_bal.models.onednn

The second line compiles `handler.cc` into the user's cache folder; it needs a C++ compiler such as g++. `--prefix DIR`
takes the oneDNN 3 that is installed there, a sequential build for instance, in place of the one of the first line.
"""
