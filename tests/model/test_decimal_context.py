"""Decimals are the same whatever context the program around has set for them."""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable
from typing import Any

import pytest

from cdc.errors import UnmappableValue
from cdc.model import merge_key
from cdc.model.encoding import from_extended_json, relaxed_json, variant
from cdc.model.encoding.document import canonical_json
from cdc.model.keystring import keystring
from tests.model import mixed
from tests.model.test_merge_key import SPECIAL_NUMBERS, raw

# Rounds to three digits, and raises for nearly all there is.
HOSTILE = decimal.Context(
    prec=3,
    rounding=decimal.ROUND_UP,
    Emin=-5,
    Emax=5,
    capitals=0,
    clamp=1,
    traps=list(decimal.Context().flags),
)


def again(document: bytes) -> bytes:
    return from_extended_json.document(json.loads(canonical_json(document)))


@pytest.mark.parametrize(
    "function",
    [
        merge_key,
        canonical_json,
        relaxed_json,
        variant.transcode,
        again,
        keystring.encode,
        lambda document: keystring.decode(*keystring.encode(document)),
        lambda document: keystring.decode(keystring.encode(document)[0]),
    ],
)
def test_no_result_depends_on_the_decimal_context_of_the_program(
    function: Callable[[bytes], Any],
) -> None:
    numbers = SPECIAL_NUMBERS + mixed.edges() + mixed.values(seed=5, count=500)
    for item in numbers:
        document = raw((b"_id", item))
        try:
            expected = function(document)
        except UnmappableValue:  # of text or names, not of numbers
            continue
        with decimal.localcontext(HOSTILE):
            assert function(document) == expected, document.hex()
