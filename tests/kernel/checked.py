"""Compiled functions with checked accesses: an index outside of an array raises IndexError.

`NUMBA_BOUNDSCHECK=1 python -m tests.kernel.checked PART...` compiles the libraries that the named
parts need, and calls their tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from cdc.kernel import loading
from tests.kernel import guarded
from tests.kernel import test_encoded_events as events
from tests.kernel import test_encoded_images as images
from tests.kernel import test_encoded_text as text
from tests.kernel import test_typed_columns as typed

_STEP = 7


def columns() -> None:
    images.test_every_single_byte_may_be_wrong(_STEP)
    images.test_damaged_bytes_are_encoded_as_before()
    images.test_values_of_all_types_and_ranges_are_encoded_as_before()
    images.test_decimals_of_any_digits_and_scale_are_the_same()
    text.test_every_single_byte_may_be_wrong_in_a_text_too(_STEP)
    text.test_doubles_of_all_kinds_read_as_before()
    text.test_what_needs_most_room_for_its_bytes_gets_it()
    events.test_a_reply_of_which_any_byte_is_wrong_is_located_or_refused()


def typed_columns() -> None:
    typed.test_every_single_byte_of_a_variant_may_be_wrong()
    typed.test_damaged_variants_of_any_documents_are_the_same()
    typed.test_what_is_large_is_the_same()


def damaged() -> None:
    guarded.run(1, 500)


PARTS: dict[str, Callable[[], None]] = {
    part.__name__: part for part in (columns, typed_columns, damaged)
}


def main() -> None:
    data, out, ends = np.zeros(1, "u1"), np.zeros(16, "u1"), np.zeros(2, "i4")
    with pytest.raises(RuntimeError, match="gather failed"):  # accesses are checked indeed
        loading.columns().gather(data, np.array([0]), np.array([9]), 0, out, ends)
    for name in sys.argv[1:]:
        PARTS[name]()


if __name__ == "__main__":
    main()
