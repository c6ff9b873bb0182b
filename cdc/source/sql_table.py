"""Options of a table that `CREATE TABLE … USING mongodb_cdc OPTIONS (…)` defines.

Spark 4.2 stores the options of a table, but does not give them to a Python source when the table is
read. It gives the source the stored schema. Therefore the schema carries the options.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from cdc.errors import BadOption
from cdc.secrets import is_reference

# While a table is created, Spark adds this prefix to its options, besides the options themselves
# and the properties of the table.
_PREFIX = "option."
_METADATA = "mongodb-cdc.options"


def table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of the table that is created; None if no table is created.

    Raises BadOption for a connection string, because catalogs show and log what they store.
    """
    options = {
        name.removeprefix(_PREFIX): value
        for name, value in given.items()
        if name.startswith(_PREFIX)
    }
    if not options and "provider" not in given:
        return None
    for name in ("uri", "connection.uri"):
        if not is_reference(options.get(name, "env:")):
            raise BadOption(
                f"Option '{name}' of a table contains a connection string, and the catalog would"
                " store it.",
                "Write it as env:NAME or file:PATH.",
            )
    return options


def require_options(given: Mapping[str, str]) -> None:
    """Raise BadOption if a table was created with a list of columns: it has lost its options."""
    if not given:
        raise BadOption(
            "No option of the source is set.",
            "Set 'uri' and 'collections'. Spark gives a table with a list of columns none of its"
            " options: create it without the list, and select columns in a query.",
        )


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table with these options."""
    first, *others = schema
    metadata = {**first.metadata, _METADATA: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_of(schema: StructType) -> dict[str, str]:
    """Return the options that the schema of a table carries; empty for any other schema."""
    texts = (field.metadata[_METADATA] for field in schema if _METADATA in field.metadata)
    options: dict[str, str] = json.loads(next(texts, "{}"))
    return options
