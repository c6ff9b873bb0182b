"""KeyString: BSON values as bytes that sort in the server's own order.

In: BSON elements, or the bytes of a resume token. Out: KeyString bytes, or BSON values.
"""

from cdc.model.keystring import keystring

__all__ = ["keystring"]
