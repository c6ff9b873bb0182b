"""Commands that apply a pipeline to documents which the command itself contains (`$documents`).

The server then decides about these documents as it decides about events of a change stream, and no
condition, projection or collation has a second implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from cdc.model.bson import ARRAY, DOCUMENT, encode_document, encode_field

# A command cannot be larger than a document, and it contains the pipeline too.
MOST_BYTES: Final = 2**24 - 2**16
# The server logs commands that take more than 100 ms, with a part of their documents. One of this
# size takes about 15 ms.
_BYTES: Final = 2**20
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)


def commands(
    pipeline: bytes, collation: bytes | None, documents: Iterable[bytes]
) -> Iterator[dict[str, Any]]:
    """Yield commands that apply a pipeline to all documents, in order.

    Each command is for a database. Its only reply has all results, if none of them is much larger
    than its document. From MongoDB 5.1 on.

    Args:
        pipeline: BSON of `{"pipeline": [stages]}`, stages that consider each document by itself.
        collation: BSON of a collation, or None.
        documents: documents of at most `MOST_BYTES`.
    """
    stages = bson.decode(pipeline, codec_options=_RAW)["pipeline"]
    rest = {} if collation is None else {"collation": RawBSONDocument(collation)}
    for part in _divide(documents):
        yield {
            "aggregate": 1,
            "pipeline": [_stage(part), *stages],
            # With one document more than there are, the server closes the cursor.
            "cursor": {"batchSize": len(part) + 1},
            **rest,
        }


def _divide(documents: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Divide documents into parts of about the size of a command."""
    part, size = list[bytes](), 0
    for document in documents:
        if part and size + len(document) > _BYTES:
            yield part
            part, size = [], 0
        part.append(document)
        size += len(document)
    if part:
        yield part


def _stage(documents: list[bytes]) -> RawBSONDocument:
    """Return the stage `$documents`. With `$literal`, the server evaluates nothing in them."""
    array = encode_document(
        encode_field(DOCUMENT, b"%d" % number, document)
        for number, document in enumerate(documents)
    )
    literal = encode_document([encode_field(ARRAY, b"$literal", array)])
    return RawBSONDocument(encode_document([encode_field(DOCUMENT, b"$documents", literal)]))
