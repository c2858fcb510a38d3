"""Methods that change which of its samples a client trains on, and how it sees them."""

from fedjax_bal.parts import SCHEDULES, CropAndFlip, DecayedResampling
from fedjax_bal.recipes.recipe import Recipe
from fedjax_bal.validate import finite_number, one_of, switch, whole_number


def crop_flip(pad: int = 4, flip: bool = True) -> Recipe:
    """Random crops and mirror images, as is usual for CIFAR: anew each time that a client draws an image.

    Not a method of federated learning but something to add to one: `combine(flcir(), crop_flip())`.

    Args:
        pad: width of the black border in pixels, 0 or more.
        flip: whether half of the images are mirrored, left to right.

    Raises:
        ValueError: a value out of range.

    Example:
        >>> crop_flip().parts
        (CropAndFlip(pad=4, flip=True),)

    References:
        He et al., 2016, section 4.2.
    """
    pad = whole_number("crop_flip: pad", pad, low=0)
    return Recipe("crop_flip", (CropAndFlip(pad=pad, flip=switch("crop_flip: flip", flip)),))


def iwds(beta_0: float = 0.9999, beta_m: float = 0.8, rho: float = 0.992, schedule: str = "decay") -> Recipe:
    """Imbalanced weight decay sampling: rare classes drawn more often at first, less so from round to round.

    An epoch is as many draws, with replacement, as the client has samples. Aggregation is left as it is: combine it
    with any other method.

    Args:
        beta_0: beta in the first round, in [0, 1]; near 1 all classes are drawn alike, at 0 all samples are.
        beta_m: beta in the limit, in [0, 1].
        rho: decay of their difference in a round, in [0, 1].
        schedule: "decay", "fixed" (beta_0 throughout, the poster's imbalanced sampling) or "uniform" (all samples
            alike, the poster's uniform sampling).

    Raises:
        ValueError: a value out of range.

    Example:
        >>> iwds(schedule="fixed").parts
        (DecayedResampling(beta_0=0.9999, beta_m=0.8, rho=0.992, schedule='fixed'),)

    References:
        Tang et al., eq. 1. The poster gives no values: these are the defaults of the authors' code, which also leaves
        out the last short batch of an epoch (`drop_last`).
    """
    part = DecayedResampling(
        beta_0=finite_number("iwds: beta_0", beta_0, high=1.0),
        beta_m=finite_number("iwds: beta_m", beta_m, high=1.0),
        rho=finite_number("iwds: rho", rho, high=1.0),
        schedule=one_of("iwds: schedule", schedule, SCHEDULES),
    )
    return Recipe("iwds", (part,), drawing="replacement")
