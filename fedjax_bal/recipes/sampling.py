"""Methods that change how a client draws its samples, and the images that it draws."""

from typing import Annotated

from annotated_types import Ge, Le

from fedjax_bal.parts import SCHEDULES, CropAndFlip, Cutout, DecayedResampling, NoiseByClient, RotationByClient
from fedjax_bal.recipes.recipe import Count, CountOrZero, NonNegative, Recipe, Share, checked
from fedjax_bal.validate import one_of

Degrees = Annotated[float, Ge(-360), Le(360)]


@checked
def crop_flip(pad: CountOrZero = 4, flip: bool = True) -> Recipe:
    """Random crops and mirror images, as is usual for CIFAR, drawn again each time that a client draws an image.

    Not a method of federated learning but something to add to one: `combine(flcir(), crop_flip())`.

    Args:
        pad: width of the black border in pixels, 0 or more.
        flip: whether half of the images are mirrored, left to right.

    Example:
        >>> crop_flip().parts
        (CropAndFlip(pad=4, flip=True),)

    References:
        He et al., 2016, section 4.2.
    """
    return Recipe("crop_flip", (CropAndFlip(pad, flip),))


@checked
def cutout(side: Count = 16) -> Recipe:
    """A square hole in each image, at a new place each time that a client draws it; put it after `crop_flip`.

    Args:
        side: of the square in pixels, at least 1; the image's border may cut it off.

    Example:
        >>> cutout().parts
        (Cutout(side=16),)

    References:
        DeVries and Taylor, 2017, section 3.2; 16 pixels for CIFAR-10.
    """
    return Recipe("cutout", (Cutout(side),))


@checked
def feature_skew(noise: NonNegative = 0.1, rotate: Degrees = 0.0) -> Recipe:
    """Clients whose images differ: more and more noise, or a larger and larger angle, from the first to the last.

    Not a method of federated learning but something to add to one, and to a partition with label skew:
    `combine(scaffold(), feature_skew(rotate=45))`. The test set stays as it is.

    Args:
        noise: standard deviation of the last client's Gaussian noise, on pixels from 0 to 1; at least 0.
        rotate: the last client's angle in degrees, anticlockwise.

    Example:
        >>> feature_skew(rotate=45).parts
        (RotationByClient(degrees=45.0), NoiseByClient(level=0.1))

    References:
        Li et al., 2022, "noise-based feature imbalance"; rotations are added here.
    """
    parts = (RotationByClient(float(rotate)),) if rotate else ()
    return Recipe("feature_skew", (*parts, NoiseByClient(noise)) if noise else parts)


@checked
def iwds(beta_0: Share = 0.9999, beta_m: Share = 0.8, rho: Share = 0.992, schedule: str = "decay") -> Recipe:
    """Imbalanced weight decay sampling: rare classes drawn more often at first, less so from round to round.

    An epoch is as many draws, with replacement, as the client has samples. Aggregation is left as it is: combine it
    with any other method.

    Args:
        beta_0: beta in the first round, in [0, 1]; near 1 all classes are drawn equally often, at 0 all samples.
        beta_m: beta in the limit, in [0, 1].
        rho: decay of their difference in a round, in [0, 1].
        schedule: "decay", "fixed" (beta_0 throughout, the poster's imbalanced sampling) or "uniform" (all samples
            alike, the poster's uniform sampling).

    Example:
        >>> iwds(schedule="fixed").parts
        (DecayedResampling(beta_0=0.9999, beta_m=0.8, rho=0.992, schedule='fixed'),)

    References:
        Tang et al., eq. 1. The poster gives no values: these are the defaults of the authors' code, which also leaves
        out the last short batch of an epoch (`drop_last`).
    """
    part = DecayedResampling(beta_0, beta_m, rho, one_of("iwds: schedule", schedule, SCHEDULES))
    return Recipe("iwds", (part,), drawing="replacement")
