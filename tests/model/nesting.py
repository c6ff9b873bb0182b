"""Values nested in each way that BSON has, and calls from far down the stack."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

from tests.model.test_merge_key import Element, array, code_with_scope, document, of, raw, text

T = TypeVar("T")
Wrap = Callable[[Element], Element]

_DOCUMENT: Wrap = lambda inner: document((b"a", inner))  # noqa: E731
_SCOPE: Wrap = lambda inner: code_with_scope(b"f", raw((b"a", inner)))  # noqa: E731
_REFERENCE: Wrap = lambda inner: document((b"$ref", text(b"c")), (b"$id", inner))  # noqa: E731

# By turns, from the inside.
NESTINGS: dict[str, tuple[Wrap, ...]] = {
    "documents": (_DOCUMENT,),
    "arrays": (array,),
    "scopes": (_SCOPE,),
    "references": (_REFERENCE,),
    "all of them": (_SCOPE, array, _REFERENCE, _SCOPE, _DOCUMENT),
}
# Of the interpreter's 1,000; a task of Spark has some thirty when it begins.
_FRAMES = 400


def nested(nesting: str, levels: int) -> Element:
    """A value below so many others."""
    item = of(1)
    for wrap in itertools.islice(itertools.cycle(NESTINGS[nesting]), levels):
        item = wrap(item)
    return item


def called_deep(call: Callable[[], T], frames: int = _FRAMES) -> T:
    return called_deep(call, frames - 1) if frames else call()
