"""Arrow columns of many documents at once.

In: the bytes of many documents. Out: Arrow arrays, equal to those that `cdc.model` makes one by
one.
"""

from cdc.arrow import cells, typed_columns
from cdc.arrow.readable_ids import readable_ids

__all__ = ["cells", "readable_ids", "typed_columns"]
