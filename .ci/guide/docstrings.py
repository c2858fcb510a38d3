"""Tells griffe, which reads the API reference from the sources, two conventions of this package."""

import re
from typing import Any

import griffe


class Conventions(griffe.Extension):
    """A docstring's section is called `Example`, and `@part` makes a dataclass."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Gives the section and the decorator names that griffe knows."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
        for decorator in obj.decorators if isinstance(obj, griffe.Class) else ():
            if str(decorator.value) == "part":
                decorator.value = griffe.ExprName("dataclasses.dataclass")
