"""The command that compiles oneDNN's convolutions."""

import argparse
import sys
from pathlib import Path

from fedjax_bal.models import onednn


def main() -> None:
    """Compiles the handler, and loads it to see that it works."""
    parser = argparse.ArgumentParser(
        prog="python -m fedjax_bal.models.onednn",
        description=onednn.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--prefix", type=Path, metavar="DIR", help="the folder of another oneDNN, with include and lib")
    try:
        print(f"wrote {onednn.build(parser.parse_args().prefix)}")
        print(f"oneDNN {onednn.load()} is ready: model.convolution=onednn, or models.build(..., convolution='onednn')")
    except ValueError as error:
        sys.exit(f"fedjax-bal: {error}")


if __name__ == "__main__":
    main()
