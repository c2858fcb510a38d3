"""Methods against client drift."""

from fedjax_bal.checks import finite_number, one_of, switch, whole_number
from fedjax_bal.models.projection import FORMS
from fedjax_bal.parts.contrast import ModelContrast
from fedjax_bal.parts.control_variates import ControlVariates, LateControlVariates
from fedjax_bal.recipes.recipe import Recipe

VARIANTS = {"official": None, "rebafl_code": LateControlVariates(clip=10.0), "cbfl_code": LateControlVariates()}
"""What goes by the name of SCAFFOLD; the part, where it isn't the paper's."""


def scaffold(scaffold_momentum: bool = False, variant: str = "official") -> Recipe:
    """Control variates against client drift, option II, updates averaged without weights.

    Args:
        scaffold_momentum: allow a local momentum, dividing the drift by the equivalent number of plain steps.
        variant: "official", or what the code of ReBaFL or CBFL calls SCAFFOLD: "rebafl_code" or "cbfl_code". These two
            are no good methods. They reproduce the very low rows in those papers' tables, which come from how the code
            treats momentum and the server's control variate; see `fedjax_bal.parts.control_variates`.

    Raises:
        ValueError: an unknown variant, or scaffold_momentum for another than the official one.

    Example:
        >>> scaffold().parts
        (ControlVariates(with_momentum=False),)
        >>> scaffold(variant="rebafl_code").parts
        (LateControlVariates(clip=10.0),)

    References:
        Karimireddy et al., 2020, Algorithm 1.
    """
    allowed = switch("scaffold: scaffold_momentum", scaffold_momentum)
    other = VARIANTS[one_of("scaffold: variant", variant, VARIANTS)]
    if other is None:
        return Recipe("scaffold", (ControlVariates(with_momentum=allowed),))
    if allowed:
        raise ValueError(
            f"scaffold: scaffold_momentum: received true beside {variant}, which divides the drift by plain steps "
            "whatever the momentum: leave it out"
        )
    return Recipe("scaffold", (other,))


def moon(mu: float = 1.0, temperature: float = 0.5, projection: str = "head", width: int = 256) -> Recipe:
    """A contrast of each client's representations to the global model's and to its own last ones.

    Args:
        mu: weight of the contrastive loss, at least 0.
        temperature: what cosines are divided by, above 0.
        projection: "head" puts two dense layers between features and classifier, as the authors' code does; "side" puts
            them beside the classifier, which leaves the network that is evaluated as it is; "none" compares features.
        width: of the projection, without effect for "none".

    Raises:
        ValueError: a value out of range.

    Example:
        >>> moon(mu=5.0).parts
        (ModelContrast(mu=5.0, temperature=0.5, projection='head', width=256),)

    References:
        Li et al., 2021, Algorithm 1.
    """
    if finite_number("moon: temperature", temperature) == 0:
        raise ValueError("moon: temperature: received 0, must be above 0; the authors use 0.5")
    contrast = ModelContrast(
        mu=finite_number("moon: mu", mu),
        temperature=float(temperature),
        projection=one_of("moon: projection", projection, FORMS),
        width=whole_number("moon: width", width),
    )
    return Recipe("moon", (contrast,))
