"""Collections: their listing, their split points, their incarnations (UUIDs)."""

from cdc.mongo.collections.enumerator import (
    INTERNAL,
    Collection,
    Listing,
    estimated_documents,
    listing,
    ranges,
)
from cdc.mongo.collections.incarnation import (
    ANY,
    Rest,
    TimeUnreadable,
    Version,
    Void,
    opened,
    void_if_gone,
)
from cdc.mongo.collections.split_points import (
    SINGLE,
    Choice,
    Size,
    all_keys,
    chosen,
    random_keys,
    size_of,
)

__all__ = [
    "ANY",
    "INTERNAL",
    "SINGLE",
    "Choice",
    "Collection",
    "Listing",
    "Rest",
    "Size",
    "TimeUnreadable",
    "Version",
    "Void",
    "all_keys",
    "chosen",
    "estimated_documents",
    "listing",
    "opened",
    "random_keys",
    "ranges",
    "size_of",
    "void_if_gone",
]
