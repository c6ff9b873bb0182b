"""Document keys: what identifies a document of a sharded collection that a router reads.

A router reports two documents with one `_id` on different shards, or both halves of a document that
moves to another shard, in any order. Only the whole document key tells them apart: the `_id` and
the shard key. So rows have it as `key` where the shard key has other fields than `_id`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bson.timestamp import Timestamp

from cdc.errors import UnsuitableSource
from cdc.model.bson import Element, element, elements, encode_document, encode_field
from cdc.model.merge_key import SEPARATOR, merge_key
from cdc.model.selection import Namespace
from cdc.model.split import key_of


class ShardKey(NamedTuple):
    """The shard key of a collection.

    Attributes:
        fields: the paths of its fields in their order, `_id` among them if it is one.
        uuid: the incarnation of the collection.
        since: the time at which it got this shard key.
    """

    fields: tuple[str, ...]
    uuid: bytes
    since: Timestamp

    @property
    def distinguishes(self) -> bool:
        """Whether documents with one `_id` may have different document keys."""
        return set(self.fields) != {"_id"}


def shard_key_changed(namespace: Namespace) -> UnsuitableSource:
    """Return the error for a collection whose document keys are others now."""
    return UnsuitableSource(
        f"{namespace} got another shard key while its documents were captured. Through a router"
        " they are known by their whole document keys, which are others now.",
        "Begin again with a new checkpoint and new tables, or set shards.direct.",
    )


def document_key_of(document: bytes, fields: Sequence[str]) -> bytes:
    """Return BSON of the document key of a document, as a change event has it.

    It has the fields of the shard key that the document has, and the `_id`. Raises UnmappableValue
    if the bytes are not a document or contain no `_id`.
    """
    own = key_of(document)
    key = []
    for field in fields:
        name = field.encode()
        found = find_field(document, name.split(b"."))
        if found is not None and field != "_id":
            key.append(encode_field(found.kind, name, document[found.start : found.stop]))
    return encode_document([*key, own[4:-1]])


def whole_key(document_key: bytes) -> str:
    """Return the text of a document key: equal for those that the server treats as equal.

    It is the merge key of the `_id`. If there are other fields, a tab follows, which no merge key
    contains, and a JSON object of their merge keys, by name. The order of the fields does not
    matter.
    """
    fields = elements(document_key, 0, len(document_key))
    texts = {
        each.name: merge_key(_single(each, document_key)) for each in fields if each.name != b"_id"
    }
    own = merge_key(key_of(document_key))
    if not texts:
        return own
    quoted = (f"{merge_key(_text(name))}:{texts[name]}" for name in sorted(texts))
    return f"{own}{SEPARATOR}{{{','.join(quoted)}}}"


def find_field(document: bytes, path: Sequence[bytes]) -> Element | None:
    """Return the field at a path of names; None if the document does not have it."""
    start, stop = 0, len(document)
    for number, name in enumerate(path, 1):
        within = elements(document, start, stop)
        found = next((each for each in within if each.name == name), None)
        if found is None or number == len(path):
            return found
        if found.kind != element.DOCUMENT:
            return None
        start, stop = found.start, found.stop
    return None


def _single(item: Element, data: bytes) -> bytes:
    return encode_document([encode_field(item.kind, b"", data[item.start : item.stop])])


def _text(name: bytes) -> bytes:
    value = (len(name) + 1).to_bytes(4, "little") + name + b"\0"
    return encode_document([encode_field(element.STRING, b"", value)])
