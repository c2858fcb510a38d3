"""Sections whose keys are options of the library, with the defaults and ranges of `fedjax_bal.options`."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import create_model

from fedjax_bal.annotations import checkable
from fedjax_bal.config.parameters import documented
from fedjax_bal.config.sections import Section


class OptionsSection(Section):
    """A section with the options of a dataclass, `options_type`, as keys; `option_keys` is the key of each field."""

    option_keys: ClassVar[Mapping[str, str]] = {}
    options_type: ClassVar[type | None] = None

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """The meaning of each key; that of an option comes from the docstring of its dataclass."""
        texts = documented(cls.options_type)
        return {key: texts.get(field, "") for field, key in cls.option_keys.items()} | super().meanings()

    def arguments(self, **others: Any) -> dict[str, Any]:
        """The options by the names of their fields, with some replaced by others."""
        return {field: getattr(self, key) for field, key in self.option_keys.items()} | others


S = TypeVar("S", bound=OptionsSection)


def with_options(
    options: type, names: Mapping[str, str | None] = {}, before: Mapping[str, str] = {}
) -> Callable[[type[S]], type[S]]:
    """Gives a section a key for each option of a dataclass, beside the keys that it declares itself.

    Args:
        options: the dataclass. A field whose key the section declares keeps that declaration; one whose type YAML has
            no values for gets no key.
        names: the keys of fields that have another name; None for no key.
        before: for other keys of the section, the option that they precede; by default they follow all options. The
            order of keys is part of a configuration's text, by which run folders and checkpoints know it.

    Returns:
        A decorator of sections.
    """

    def add(section: type[S]) -> type[S]:
        fields = {names.get(field.name, field.name): field for field in dataclasses.fields(options)}
        kinds = {key: checkable(field.type) for key, field in fields.items() if key is not None}
        added: dict[str, Any] = {
            key: (kind, fields[key].default)
            for key, kind in kinds.items()
            if kind is not None and key not in section.model_fields
        }
        naming = {"__module__": section.__module__, "__doc__": section.__doc__}
        made: type[S] = create_model(section.__name__, __base__=section, **naming, **added)
        made.options_type = options
        made.option_keys = {field.name: key for key, field in fields.items() if key in made.model_fields}
        _put_in_order(made, before)
        return made

    return add


def _put_in_order(section: type[OptionsSection], before: Mapping[str, str]) -> None:
    known, options = dict(section.model_fields), tuple(section.option_keys.values())
    others = [key for key in known if key not in options]
    order = [key for option in options for key in (*(key for key in others if before.get(key) == option), option)]
    section.model_fields.clear()
    section.model_fields.update({key: known[key] for key in dict.fromkeys([*order, *others])})
    section.model_rebuild(force=True)
