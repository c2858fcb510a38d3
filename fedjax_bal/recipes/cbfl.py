"""CBFL: images that a generator has learned from the global model, beside each client's own."""

from typing import Annotated, Literal

from annotated_types import Ge

from fedjax_bal.annotations import Seed
from fedjax_bal.parts import Fakes, LocalGenerator, SharedDcgans, SharedGenerator
from fedjax_bal.recipes.recipe import Count, CountOrZero, NonNegative, Recipe, checked, positive, readings


@readings(
    paper={"direction": "student_teacher", "layers": "sum", "generator": "per_client"},
    code={
        "warm_up": 701, "interval": 3, "teacher": "snapshot", "iterations": 1000, "generator_rate": 0.003, "gamma": 3.0,
    },
)  # fmt: skip
@checked
def cbfl(
    warm_up: CountOrZero = 700,
    interval: Count = 1,
    teacher: Literal["current", "snapshot"] = "current",
    generator: Literal["shared", "per_client", "gaussian", "dcgan"] = "shared",
    labels: Literal["balanced", "uniform", "rarest"] = "balanced",
    rarest: Count | None = None,
    learn: Literal["distillation", "cross_entropy"] = "distillation",
    fakes: Count = 70,
    weight: NonNegative = 1.0,
    distillation: NonNegative = 1.0,
    attention: NonNegative = 400.0,
    temperature: float = 5.0,
    direction: Literal["teacher_student", "student_teacher"] = "teacher_student",
    gamma: NonNegative = 10.0,
    layers: Literal["mean", "sum"] = "mean",
    classification: NonNegative = 1.0,
    iterations: CountOrZero = 2000,
    generator_batch: Count = 256,
    generator_rate: NonNegative = 0.001,
    width: Annotated[int, Ge(2)] = 128,
    latent: Count = 100,
    dcgan_iterations: CountOrZero = 2000,
    dcgan_pool: Count = 256,
    dcgan_seed: Seed = 0,
) -> Recipe:
    """CBFL: images of the classes that clients lack, from a generator trained on the global model's batch statistics.

    `variant="paper"` or `variant="code"` sets all options in which the paper and the authors' code differ; what is
    given beside it comes first.

    Args:
        warm_up: the first round with fakes, counted from 1, which the run must reach; 0 is as good as 1. The authors'
            code begins a round later.
        interval: rounds from one training of a shared generator to the next.
        teacher: of a shared generator and its fakes: the global model of the round ("current") or of the last training
            ("snapshot").
        generator: "shared", one for all clients; "per_client", one for each local training; "gaussian", noise instead;
            "dcgan", a DCGAN that each client trains on its own data before the first round and lends all others.
        labels: of the fakes: "balanced", by inverse class frequency; "uniform"; "rarest", of the classes that the
            client holds least of.
        rarest: how many classes, with "rarest"; equally rare ones, such as all that a client lacks, share the last
            places.
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
            with generators of the clients' own, which are trained in each round, against the model received.

    Example:
        >>> [type(part).__name__ for part in cbfl(generator="gaussian").parts]
        ['Fakes']

    References:
        CBFL (Li et al., 2023), Algorithms 1 and 2, with the paper's constants for CIFAR-10. The direction of the
        divergence, T, the mean over layers, and fakes alone in the added loss are the authors' code's. In the paper
        every client trains a generator of its own. Noise and DCGANs: section 6.2, Table 5. Of the DCGANs nothing more
        is known; `fedjax_bal.parts.SharedDcgans` says what was chosen, and that lending them is not counted as traffic.
    """
    if (rarest is None) == (labels == "rarest"):
        raise ValueError(f"cbfl: rarest: received {rarest} with labels={labels!r}; it goes with labels='rarest' alone")
    if generator == "per_client" and (interval, teacher) != (1, "current"):
        raise ValueError(
            f"cbfl: received interval={interval} and teacher={teacher!r} with generator='per_client', must be 1 and "
            "'current': clients' own generators are trained at each local training, against the model received; or "
            "take 'shared'"
        )
    begin = max(warm_up - 1, 0)  # parts count rounds from 0
    images = generator if generator in ("gaussian", "dcgan") else "generator"
    temperature = positive("cbfl: temperature", temperature)
    sizes = {"width": width, "latent": latent}
    made = Fakes(
        count=fakes, labels=labels, rarest=rarest or 0, images=images, learn=learn, weight=weight,
        distillation=distillation, attention=attention, temperature=temperature, direction=direction, warm_up=begin,
        **sizes,
    )  # fmt: skip
    training = {
        "warm_up": begin, "iterations": iterations, "batch_size": generator_batch, "rate": generator_rate,
        "gamma": gamma, "layers": layers, "classification": classification, **sizes,
    }  # fmt: skip
    makers = {
        "shared": (SharedGenerator(interval=interval, teacher=teacher, **training),),
        "per_client": (LocalGenerator(**training),),
        "gaussian": (),
        "dcgan": (SharedDcgans(iterations=dcgan_iterations, pool=dcgan_pool, seed=dcgan_seed, **sizes),),
    }
    return Recipe("cbfl", (*makers[generator], made))
