"""The needs of methods, checked against the rest of a configuration before any data is loaded."""

from collections.abc import Sequence

from fedjax_bal.config.configuration import Config, MethodConfig
from fedjax_bal.config.problems import KeyPath, Problem, raise_all


def check_methods(config: Config, source: str, overridden: Sequence[KeyPath] = ()) -> None:
    """Refuses methods that lack what they need; raises `ConfigError` with one line for each, beginning with `source`.

    Example:
        >>> from fedjax_bal.config import load_config
        >>> load_config(None, ["methods=[fedbn]"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        fedjax_bal.config.problems.ConfigError: ...: methods.0: fedbn: received the model mlp, none of ...
    """
    methods = (config.for_method(index) for index in range(len(config.methods)))
    raise_all(source, (problem for index, own in enumerate(methods) for problem in _unmet(index, own)), overridden)


def _unmet(index: int, method: MethodConfig) -> list[Problem]:
    from fedjax_bal.models import normalisation
    from fedjax_bal.parts import BALANCED, BATCH_STATISTICS, RunFacts, check_needs

    recipe, training, model = method.recipe, method.training, method.model
    facts = RunFacts(
        parts=(*recipe.parts, *BATCH_STATISTICS[training.options.batch_statistics]),
        local=training.optimizer.built,
        carried=bool(recipe.carried),
        rounds=training.rounds,
        clients=method.partition.known_clients,
        auxiliary=[BALANCED] * (method.auxiliary.per_class > 0),
        model=model.name,
        normalisation=normalisation(model.name, model.parameters),
    )
    try:
        check_needs(facts)
    except ValueError as error:
        return [Problem(("methods", index), f"{method.name}: {str(error).removeprefix(f'{method.name}: ')}")]
    return []
