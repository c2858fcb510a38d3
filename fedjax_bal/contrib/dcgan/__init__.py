"""DCGANs that clients train on their own data and lend to each other, in place of CBFL's generator.

    fedjax-bal run configs/papers/cbfl/table5_c10.yaml --plugin fedjax_bal.contrib.dcgan

The plug-in registers the recipe `cbfl_dcgan`.
"""

from fedjax_bal.contrib.dcgan.lending import SharedDcgans, borrow_images, cbfl_dcgan
from fedjax_bal.contrib.dcgan.network import Dcgan, build_dcgan
from fedjax_bal.plugins import register
from fedjax_bal.recipes import cbfl, citation

__all__ = ["Dcgan", "SharedDcgans", "borrow_images", "build_dcgan", "cbfl_dcgan"]

register("recipe", "cbfl_dcgan", citation=citation(cbfl()))(cbfl_dcgan)
