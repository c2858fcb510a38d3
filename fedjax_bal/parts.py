"""The units of behaviour of clients and server, which recipes combine.

A part plays one or more roles, which decide when it runs, what it sees and how several parts combine; the guide,
`fedjax_bal/guide/roles.md`, has a table of all roles. On clients the context is a `Context`, on the server a
`ServerContext`.
"""

import dataclasses
import inspect
import sys

from fedjax_bal.methods import MODULES, roles
from fedjax_bal.methods.batch_statistics import BATCH_STATISTICS
from fedjax_bal.methods.dp import epsilon
from fedjax_bal.methods.needs import BALANCED, SERVER_ROWS, check_needs, names_of_needs
from fedjax_bal.methods.roles import (
    Need,
    Part,
    RoundsSoFar,
    RunFacts,
    RunSetting,
    changes_for_evaluation,
    part,
    parts_with,
    static,
)

_CLASSES = [kind for module in MODULES for kind in vars(module).values() if isinstance(kind, type)]
_PARTS = [kind for kind in _CLASSES if issubclass(kind, Part) and dataclasses.is_dataclass(kind)]
_ROLES = [kind for kind in vars(roles).values() if inspect.isabstract(kind) and issubclass(kind, Part)]
_TOOLS = (
    *(Need, Part, RoundsSoFar, RunFacts, RunSetting),
    *(changes_for_evaluation, check_needs, epsilon, names_of_needs, part, parts_with, static),
)
_THINGS = {thing.__name__ for thing in (*_PARTS, *_ROLES, *_TOOLS) if thing.__name__[0] != "_"}
_NAMES = sorted({"BALANCED", "BATCH_STATISTICS", "SERVER_ROWS", *_THINGS})
# The parts are names of this module; for editors and type checkers they stand in the stub, parts.pyi.
vars(sys.modules[__name__]).update(
    {kind.__name__: kind for kind in (*_PARTS, *_ROLES)},
    __all__=_NAMES,
    __dir__=lambda: _NAMES,
)
