"""One option as a dataclass declares it, and the list of a dataclass's options."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as an attribute of a dataclass declares it.

    `choices` lists the values of a string; `least` and `most` are the limits of a number. An option
    whose `default` is None is either required (`required`) or absent unless it is set.
    `unit`, "s" or "ms", is that of a duration. `aliases` are names of other tools for the option.
    `description` has whole sentences.
    """

    attribute: str
    kind: type
    default: Any
    description: str
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    required: bool = False
    unit: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name that users write: `retry.seconds` for `retry_seconds`, `from` for `from_`."""
        return self.attribute.rstrip("_").replace("_", ".")


def optional(
    default: T,
    description: str,
    *,
    choices: tuple[str, ...] = (),
    least: int | None = None,
    most: int | None = None,
    unit: str = "",
    aliases: tuple[str, ...] = (),
) -> T:
    """Declare an option with a default. The arguments are attributes of `Option`."""
    limits = {"least": least, "most": most, "unit": unit}
    texts = {"description": description, "choices": choices, "aliases": aliases}
    return field(default=default, metadata={**texts, **limits})


def required(description: str, *, secret: bool = False, aliases: tuple[str, ...] = ()) -> str:
    """Declare a text that must be set. The `repr` of the options omits it if it is `secret`."""
    metadata = {"description": description, "required": True, "aliases": aliases}
    declared: str = field(repr=not secret, metadata=metadata)
    return declared


def list_options(options: type) -> tuple[Option, ...]:
    """Return the options that the attributes of a dataclass declare, in their order."""
    kinds = get_type_hints(options)
    return tuple(
        Option(
            each.name,
            _value_type(kinds[each.name]),
            None if each.default is dataclasses.MISSING else each.default,
            **each.metadata,
        )
        for each in dataclasses.fields(options)
        if each.metadata
    )


def _value_type(hint: Any) -> type:
    """Return the type of a value that is not None."""
    [kind] = [each for each in get_args(hint) or (hint,) if each is not NoneType]
    assert isinstance(kind, type)
    return kind
