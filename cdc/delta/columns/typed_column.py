"""A typed column as text: `decimal(18,2)`, `array<string> from lines`, ``date from `at.utc` ``.

The types are those of Spark, parsed here without Spark: a configuration is checked where no JVM
runs. A path names fields from the top of the document, separated by dots. A name that contains a
dot or a backtick stands in backticks, and a backtick is doubled there, as in SQL. `$` is the whole
document."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from pyspark.sql import types as T
from pyspark.sql.types import DataType, StructField

from cdc.errors import BadOption

Path: TypeAlias = tuple[str, ...]

_SCALARS: dict[str, Callable[[], DataType]] = {
    "string": T.StringType,
    "boolean": T.BooleanType,
    "tinyint": T.ByteType,
    "smallint": T.ShortType,
    "int": T.IntegerType,
    "bigint": T.LongType,
    "float": T.FloatType,
    "double": T.DoubleType,
    "date": T.DateType,
    "timestamp": T.TimestampType,
    "binary": T.BinaryType,
    "variant": T.VariantType,
}
TYPES = (*_SCALARS, "decimal(p,s)", "array<…>", "map<string,…>", "struct<name: …>")
_SOURCE, _EVOLVED = "from ", "evolved from "
_MAX_DIGITS = 38
# What Delta takes in a name only with column mapping, which no reader of old tables understands.
REFUSED = r"[ ,;{}()\n\t=]|^$"
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|([\w$]+)|([<>(),:]))")
_SEGMENT = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column, its type, and the field of the document that it takes.

    An empty path is the whole document. `is_evolved`: it was not configured; the table got it from
    its documents.
    """

    name: str
    type: DataType
    path: Path
    is_evolved: bool = field(default=False, compare=False)

    @property
    def is_variant(self) -> bool:
        return isinstance(self.type, T.VariantType)

    def field(self) -> StructField:
        """With its source in the comment, by which `of_field` recognizes the column."""
        comment = (_EVOLVED if self.is_evolved else _SOURCE) + path_text(self.path)
        return StructField(self.name, self.type, True, {"comment": comment})


def of_field(found: StructField) -> TypedColumn | None:
    """The typed column that a table's field was made for; None for any other field."""
    comment = found.metadata.get("comment", "")
    for prefix in (_SOURCE, _EVOLVED):
        if comment.startswith(prefix):
            path = parse_path(comment.removeprefix(prefix))
            return TypedColumn(found.name, found.dataType, path, prefix == _EVOLVED)
    return None


def parse(text: str) -> tuple[DataType, Path | None]:
    """Parse `type` or `type from path` into (type, path).

    The path is None if there is none, and empty for the whole document. Raises BadOption.
    """
    tokens = _Tokens(text)
    kind = _type(tokens)
    if tokens.is_done():
        return kind, None
    if tokens.take().lower() != "from":
        raise _bad_type(text)
    return kind, parse_path(tokens.rest())


def parse_path(text: str) -> Path:
    """The names that lead to a field; none for `$`. Raises BadOption."""
    if text == "$":
        return ()
    names, at = [], 0
    while match := _SEGMENT.match(text, at):
        names.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        at = match.end() + 1
        if match.end() == len(text):
            return tuple(names)
        if text[match.end()] != ".":
            break
    raise BadOption(
        f"'{text}' is no path to a field.",
        "Write names with dots between them, `a name.with a dot` in backticks, or $.",
    )


def path_text(path: Path) -> str:
    """The inverse of `parse_path`."""
    if not path:
        return "$"
    is_plain = re.compile(r"(?!\$$)[\w$-]+").fullmatch
    return ".".join(name if is_plain(name) else f"`{name.replace('`', '``')}`" for name in path)


def is_storable(name: str) -> bool:
    """Whether Delta takes a column of that name."""
    return not re.search(REFUSED, name)


def folded(name: str) -> str:
    """Equal for names that Spark takes as equal (equalsIgnoreCase of Java, by characters)."""
    upper = (big if len(big := char.upper()) == 1 else char for char in name)
    return "".join(char.lower()[0] for char in upper)


@dataclass(slots=True)
class _Tokens:
    text: str
    at: int = field(default=0)

    def is_done(self) -> bool:
        return not self.rest()

    def rest(self) -> str:
        return self.text[self.at :].strip()

    def take(self, *expected: str) -> str:
        """The next token. Raises BadOption if some are expected and it is none of them."""
        match = _TOKEN.match(self.text, self.at)
        token = match[0].strip() if match else ""
        if match is None or (expected and token not in expected):
            raise _bad_type(self.text)
        self.at = match.end()
        return token


def _type(tokens: _Tokens) -> DataType:
    name = tokens.take().lower()
    if name in _SCALARS:
        return _SCALARS[name]()
    if name == "decimal":
        return _decimal(tokens)
    if name in ("array", "map", "struct"):
        tokens.take("<")
        found = {"array": _array, "map": _map, "struct": _struct}[name](tokens)
        tokens.take(">")
        return found
    raise _bad_type(tokens.text)


def _decimal(tokens: _Tokens) -> DataType:
    tokens.take("(")
    precision = tokens.take()
    tokens.take(",")
    scale = tokens.take()
    tokens.take(")")
    if not (precision.isdecimal() and scale.isdecimal()):
        raise _bad_type(tokens.text)
    if not max(1, int(scale)) <= int(precision) <= _MAX_DIGITS:
        raise BadOption(
            f"There is no decimal({precision},{scale}).",
            f"A decimal has 1 to {_MAX_DIGITS} digits, and no more of them after the point.",
        )
    return T.DecimalType(int(precision), int(scale))


def _array(tokens: _Tokens) -> DataType:
    return T.ArrayType(_type(tokens))


def _map(tokens: _Tokens) -> DataType:
    if tokens.take().lower() != "string":
        raise BadOption(f"'{tokens.text}': the keys of a map are strings.")
    tokens.take(",")
    return T.MapType(T.StringType(), _type(tokens))


def _struct(tokens: _Tokens) -> DataType:
    struct, seen = T.StructType(), set[str]()
    while True:
        token = tokens.take()
        name = token[1:-1].replace("``", "`") if token.startswith("`") else token
        tokens.take(":")
        if not is_storable(name) or folded(name) in seen:
            raise BadOption(f"'{tokens.text}': '{name}' cannot be a field, or not twice.")
        seen.add(folded(name))
        struct.add(name, _type(tokens))
        if not tokens.rest().startswith(","):
            return struct
        tokens.take(",")


def _bad_type(text: str) -> BadOption:
    return BadOption(
        f"'{text}' is no type of a column.",
        f"Write one of {', '.join(TYPES)}, and where the value is, if not in the field of the"
        " column's own name: string from address.city.",
    )
