"""The placeholder of a document that cannot be mapped (see `cdc.model.encoding.document`).

Raw bytes (`binary`) are never mapped, so such a column contains no placeholders."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from cdc.model.encoding import PLACEHOLDER_JSON, RAW, UNMAPPABLE

# A placeholder is an object of exactly these two. A user's document may have fields of these names.
_VARIANT = f"OBJECT<`{RAW}`: BINARY, `{UNMAPPABLE}`: STRING>"


def is_placeholder(image: Column, kind: str) -> Column:
    """Whether an image, a column of type `kind`, is a placeholder; never null."""
    if kind == "variant":
        found = _field(image, UNMAPPABLE, "string").isNotNull()
        return F.coalesce(found & (F.schema_of_variant(image) == _VARIANT), F.lit(False))
    if kind == "string":
        found = image.startswith(f'{{"{UNMAPPABLE}":"') & image.rlike(PLACEHOLDER_JSON)
        return F.coalesce(found, F.lit(False))
    return F.lit(False)


def reason(image: Column, kind: str) -> Column:
    """The reason why the document could not be mapped."""
    return _field(_as_variant(image, kind), UNMAPPABLE, "string")


def raw(image: Column, kind: str) -> Column:
    """The document's bytes."""
    if kind == "variant":
        return _field(image, RAW, "binary")
    base64 = F.try_variant_get(_as_variant(image, kind), f"$['{RAW}'].$binary.base64", "string")
    return F.unbase64(base64)


def _as_variant(image: Column, kind: str) -> Column:
    return image if kind == "variant" else F.try_parse_json(image)


def _field(image: Column, name: str, kind: str) -> Column:
    return F.try_variant_get(image, f"$['{name}']", kind)
