"""CBFL: images that a generator draws out of the global model, beside each client's own."""

from typing import Literal

from fedjax_bal.data import LARGEST_SEED
from fedjax_bal.parts import Fakes, LocalGenerator, SharedDcgans, SharedGenerator
from fedjax_bal.recipes.recipe import Recipe
from fedjax_bal.validate import finite_number, one_of, whole_number


def cbfl(
    warm_up: int = 700,
    interval: int = 1,
    teacher: Literal["current", "snapshot"] = "current",
    generator: Literal["shared", "per_client", "gaussian", "dcgan"] = "shared",
    labels: Literal["balanced", "uniform", "rarest"] = "balanced",
    rarest: int | None = None,
    learn: Literal["distillation", "cross_entropy"] = "distillation",
    fakes: int = 70,
    weight: float = 1.0,
    distillation: float = 1.0,
    attention: float = 400.0,
    temperature: float = 5.0,
    direction: Literal["teacher_student", "student_teacher"] = "teacher_student",
    gamma: float = 10.0,
    layers: Literal["mean", "sum"] = "mean",
    classification: float = 1.0,
    iterations: int = 2000,
    generator_batch: int = 256,
    generator_rate: float = 0.001,
    width: int = 128,
    latent: int = 100,
    dcgan_iterations: int = 2000,
    dcgan_pool: int = 256,
    dcgan_seed: int = 0,
) -> Recipe:
    """CBFL: a generator trained from the global model's batch statistics fills up what clients lack.

    Args:
        warm_up: the first round with fakes, counted from 1, which the run must reach; 0 is as good as 1. The authors'
            code begins a round later.
        interval: rounds from one training of a shared generator to the next.
        teacher: of a shared generator and its fakes: the global model of the round ("current") or of the last training
            ("snapshot").
        generator: "shared", one for all clients; "per_client", one for each visit; "gaussian", noise in its place;
            "dcgan", a DCGAN that each client trains on its own data before the first round and lends all others.
        labels: of the fakes: "balanced", by inverse class frequency; "uniform"; "rarest", of the classes that the
            client holds least of.
        rarest: how many classes, with "rarest".
        learn: what the student learns on fakes, the teacher's answers ("distillation") or their labels
            ("cross_entropy").
        fakes: for each mini-batch.
        weight: lambda, of all that is learnt on fakes.
        distillation: of the teacher's answers in it, 1 in the paper; 0 leaves attention transfer alone.
        attention: beta, of the attention transfer in it.
        temperature: T of the distillation.
        direction: of its divergence.
        gamma: weight of the batch statistics in the generator's loss; 0 for a model without batch normalisation.
        layers: "mean" or "sum" of them over layers.
        classification: weight of the cross-entropy in that loss, 1 in the paper.
        iterations: the generator's steps.
        generator_batch: images a step.
        generator_rate: its learning rate, Adam's.
        width: its channels; a DCGAN's too.
        latent: length of its noise; a DCGAN's too.
        dcgan_iterations: each DCGAN's steps.
        dcgan_pool: images that each DCGAN makes, from which fakes are drawn.
        dcgan_seed: decides the DCGANs, from 0 to 2**32 - 1; all seeds of a run share them.

    Raises:
        ValueError: a value out of range; `rarest` without its labels or the other way round; `interval` or `teacher`
            with generators of the clients' own, which are trained at each visit, against the model received.

    Example:
        >>> [type(part).__name__ for part in cbfl(generator="gaussian").parts]
        ['Fakes']

    References:
        CBFL (Li et al., 2023), Algorithms 1 and 2, with the paper's constants for CIFAR-10. The direction of the
        divergence, T, the mean over layers, and fakes alone in the added loss are the authors' code's. In the paper
        every client trains a generator of its own. Noise and DCGANs: section 6.2, Table 5. Of the DCGANs nothing more
        is known; `fedjax_bal.parts.SharedDcgans` says what was chosen, and that lending them is not counted as traffic.
    """
    one_of("cbfl: labels", labels, ("balanced", "uniform", "rarest"))
    if (rarest is None) == (labels == "rarest"):
        raise ValueError(f"cbfl: rarest: received {rarest} with labels={labels!r}; it goes with labels='rarest' alone")
    one_of("cbfl: generator", generator, ("shared", "per_client", "gaussian", "dcgan"))
    one_of("cbfl: teacher", teacher, ("current", "snapshot"))
    sizes = {"width": whole_number("cbfl: width", width, 2), "latent": whole_number("cbfl: latent", latent)}
    begin = max(whole_number("cbfl: warm_up", warm_up, low=0) - 1, 0)  # parts count rounds from 0
    fitting = {
        "warm_up": begin,
        "iterations": whole_number("cbfl: iterations", iterations, low=0),
        "batch_size": whole_number("cbfl: generator_batch", generator_batch),
        "rate": finite_number("cbfl: generator_rate", generator_rate),
        "gamma": finite_number("cbfl: gamma", gamma),
        "layers": one_of("cbfl: layers", layers, ("mean", "sum")),
        "classification": finite_number("cbfl: classification", classification),
        **sizes,
    }
    made = Fakes(
        count=whole_number("cbfl: fakes", fakes),
        labels=labels,
        rarest=0 if rarest is None else whole_number("cbfl: rarest", rarest),
        images=generator if generator in ("gaussian", "dcgan") else "generator",
        learn=one_of("cbfl: learn", learn, ("distillation", "cross_entropy")),
        weight=finite_number("cbfl: weight", weight),
        distillation=finite_number("cbfl: distillation", distillation),
        attention=finite_number("cbfl: attention", attention),
        temperature=_above_zero("cbfl: temperature", temperature),
        direction=one_of("cbfl: direction", direction, ("teacher_student", "student_teacher")),
        warm_up=begin,
        **sizes,
    )
    every = whole_number("cbfl: interval", interval)
    if generator == "per_client" and (every, teacher) != (1, "current"):
        raise ValueError(
            f"cbfl: received interval={every} and teacher={teacher!r} with generator='per_client', must be 1 and "
            "'current': clients' own generators are trained at each visit, against the model received; or take 'shared'"
        )
    makers = {
        "shared": (SharedGenerator(interval=every, teacher=teacher, **fitting),),
        "per_client": (LocalGenerator(**fitting),),
        "gaussian": (),
        "dcgan": (_dcgans(dcgan_iterations, dcgan_pool, dcgan_seed, sizes),),
    }
    return Recipe("cbfl", (*makers[generator], made))


def _dcgans(iterations: int, pool: int, seed: int, sizes: dict[str, int]) -> SharedDcgans:
    if whole_number("cbfl: dcgan_seed", seed, low=0) > LARGEST_SEED:
        raise ValueError(f"cbfl: dcgan_seed: received {seed}, must be a whole number from 0 to {LARGEST_SEED}")
    return SharedDcgans(
        iterations=whole_number("cbfl: dcgan_iterations", iterations, low=0),
        pool=whole_number("cbfl: dcgan_pool", pool),
        seed=seed,
        **sizes,
    )


def _above_zero(name: str, value: float) -> float:
    if finite_number(name, value) == 0:
        raise ValueError(f"{name}: received {value!r}, must be above 0")
    return float(value)
