"""Collections: their listing, their split points, their incarnations (UUIDs)."""

from cdc.mongo.collections.collection_size import Size, estimate_size
from cdc.mongo.collections.enumerator import (
    Collection,
    Listing,
    estimate_documents,
    list_collections,
    list_databases,
    list_once,
    ranges,
)
from cdc.mongo.collections.incarnation import (
    FIND_ANY,
    TimeUnreadable,
    UnreadRange,
    Version,
    Void,
    find_incarnation,
    names_incarnations,
    void_if_gone,
)
from cdc.mongo.collections.split_points import (
    Choice,
    all_keys,
    choose_strategy,
    count_splits,
    random_keys,
)

__all__ = [
    "FIND_ANY",
    "Choice",
    "Collection",
    "Listing",
    "Size",
    "TimeUnreadable",
    "UnreadRange",
    "Version",
    "Void",
    "all_keys",
    "choose_strategy",
    "count_splits",
    "estimate_documents",
    "estimate_size",
    "find_incarnation",
    "list_collections",
    "list_databases",
    "list_once",
    "names_incarnations",
    "random_keys",
    "ranges",
    "void_if_gone",
]
