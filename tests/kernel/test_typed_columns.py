"""Typed columns that compiled functions fill are those that plain Python makes of each document."""

from __future__ import annotations

import datetime
import math
import random
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from operator import eq
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import Decimal128, Int64
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from cdc.arrow import typed_columns
from cdc.delta.columns import Columns, path_text
from cdc.delta.columns.arrow_columns import plan_of
from cdc.kernel import Total
from cdc.model.encoding import encoder, pack_object
from cdc.model.encoding.variant import pack_metadata
from cdc.model.encoding.variant_bytes import DECIMAL4, DOUBLE, dictionary
from cdc.model.typed import MOST_DIGITS
from tests.kernel.arrow import VARIANT
from tests.model.mixed import edges, values
from tests.model.test_merge_key import Element, array, of, raw
from tests.model.test_merge_key import document as of_fields
from tests.slow import slow_but

SCALARS = [
    *("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date"),
    *("timestamp", "binary", "decimal(38,0)", "decimal(18,2)", "decimal(38,20)", "decimal(38,38)"),
    *("decimal(5,5)", "decimal(1,0)"),
]
NESTED = [
    *("variant", "array<variant>", "array<double>", "array<array<bigint>>", "map<string,string>"),
    *("map<string,variant>", "struct<a: int, b: string>", "struct<ab: struct<a: double>, é: date>"),
    *("array<struct<b: string, a: bigint>>", "map<string,array<int>>", "struct<b: variant>"),
]
NOW = datetime.datetime(2026, 11, 22, 1, 2, 3)
NAMES = ["a", "b", "ab", "", "é", "\U0001f600", "\uff5e"]
LIKELY = [
    of(each)
    for each in (
        *(
            NOW,
            datetime.datetime(1969, 12, 31),
            1,
            300,
            Int64(2**40),
            2.5,
            3.0,
            -0.0,
            0.1,
            "text",
            True,
            None,
            b"x",
            "x" * 70,
            [],
            {},
        ),
        *(Decimal128("1.5"), Decimal128("2.00"), Decimal128("-7E+3"), [1, 2.5, None], ["a", "b"]),
        *({"a": 1, "b": "x"}, {"a": "y"}, {"ab": {"a": 1.5}}, [{"a": 1, "b": "x"}, {}, None]),
        *([{"a": 1, "c": 2}], [[1], [], [2.0]], {"b": {"é": {"a": [1]}}}),
    )
]


def variants(documents: Iterable[bytes]) -> pa.Array:
    return structs(map(encoder("variant"), documents))


def structs(found: Iterable[tuple[bytes, ...]]) -> pa.Array:
    return pa.array(
        [dict(zip(("value", "metadata"), each, strict=True)) for each in found], VARIANT
    )


def both(documents: pa.Array, texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """What becomes of the documents, after it was seen to be the same in either way."""
    columns = Columns.parse(texts)
    kind = numbered(to_arrow_type(StructType(columns.fields()), timezone="UTC"))
    plan = plan_of(columns.columns)
    expected = typed_columns.convert_one_by_one(documents, plan, kind)
    found = typed_columns.convert_at_once(documents, plan, kind)
    found.validate(full=True)
    rows: list[dict[str, Any]] = found.to_pylist()
    for one, other in zip(expected.to_pylist(), rows, strict=True):
        assert repr(one) == repr(other)  # in which a NaN is one
    return rows


def numbered(kind: pa.DataType) -> pa.DataType:
    """With the numbers of times and dates: a VARIANT holds some that Python does not."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(numbered(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(numbered(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, numbered(kind.item_type))
    return {pa.timestamp("us", "UTC"): pa.int64(), pa.date32(): pa.int32()}.get(kind, kind)


def drawn(draw: random.Random, pool: Sequence[Element], depth: int = 3) -> Element:
    fields = []
    for name in draw.sample(NAMES, draw.randrange(len(NAMES) + 1)):
        value = draw.choice(LIKELY if draw.random() < 0.7 else pool)
        nested = depth and draw.random() < 0.4
        fields.append((name.encode(), drawn(draw, pool, depth - 1) if nested else value))
    return of_fields(*fields)


def columns(draw: random.Random) -> dict[str, str]:
    """Of any types in any places, and now and then a variant of what leads there."""
    found, taken = dict[str, str](), list[tuple[str, ...]]()
    for number in range(draw.randrange(1, 9)):
        path = tuple(draw.choice(NAMES) for _ in range(draw.randrange(1, 4)))
        if all(path[: len(one)] != one and one[: len(path)] != path for one in taken):
            taken.append(path)
            found[f"c{number}"] = f"{draw.choice(SCALARS + NESTED)} from {path_text(path)}"
            if draw.random() < 0.3:
                outer = path_text(path[: draw.randrange(len(path))])
                found.setdefault("outer", f"variant from {outer}")
    return found


_SEEDS = slow_but(range(2), range(8))


@pytest.mark.parametrize("seed", _SEEDS)
def test_columns_of_any_documents_are_those_of_each(seed: int) -> None:
    draw = random.Random(seed)
    pool = values(seed, 500)
    documents = variants(drawn(draw, pool)[1] for _ in range(200))
    for _ in range(5):
        both(documents, columns(draw))


@pytest.mark.parametrize("kind", SCALARS + NESTED)
def test_what_fits_a_type_is_the_same_for_values_of_all_types_and_ranges(kind: str) -> None:
    items = (
        values(3, 700)
        + edges()
        + LIKELY
        + [of(n / 64 * 10**e) for n in range(9) for e in range(18)]
    )
    documents = variants(raw((b"v", item), (b"w", array(item, item))) for item in items)
    found = both(documents, {"v": kind, "w": f"array<{kind}>"})
    assert {row["v"] is None for row in found} == {True, False}
    assert [row["v"] is None for row in found] == [row["w"] in (None, [None] * 2) for row in found]


# Around what 4, 8 and 16 bytes hold, 64 bits, and the 28 digits of Python's default context.
PRECISIONS = (1, 2, 8, 9, 10, 15, 17, 18, 19, 20, 27, 28, 29, 30, 34, 36, 37, 38)
DECIMALS = sorted({(p, s) for p in PRECISIONS for s in (0, 1, p // 2, p - 1, p) if s <= p})


def number(unscaled: int, scale: int) -> bytes | None:
    """The smallest VARIANT decimal of that value; None where there is none."""
    for index, digits in enumerate(MOST_DIGITS):
        if abs(unscaled) < 10**digits and scale <= digits:
            header = bytes([DECIMAL4 + index << 2, scale])
            return header + unscaled.to_bytes(4 << index, "little", signed=True)
    return None


def boundaries(precision: int, scale: int) -> list[bytes | None]:
    """Numbers on both sides of the largest, of the smallest and of a half of the last digit of a
    type, each as a decimal and as doubles next to it."""
    found = list[bytes | None]()
    for whole, power in ((10**precision, scale), (1, scale), (10 ** (precision // 2), scale)):
        for more in range(3):
            for less in (-5, -1, 0, 1, 5):
                unscaled = whole * 10**more + less
                found += [number(sign * unscaled, power + more) for sign in (1, -1)]
                near = unscaled / 10 ** (power + more)
                found += [
                    double(sign * each)
                    for each in (near, math.nextafter(near, 0), math.nextafter(near, math.inf))
                    for sign in (1, -1)
                ]
    return found


def double(value: float) -> bytes:
    return struct.pack("<Bd", DOUBLE << 2, value)


def into_decimals(cells: Mapping[tuple[int, int], Sequence[bytes | None]]) -> dict[Any, Any]:
    """The values of each type in a column of that type, None where one does not fit."""
    names = [f"c{p}_{s}" for p, s in cells]
    metadata = pack_metadata([name.encode() for name in names])
    order = sorted(range(len(names)), key=names.__getitem__)
    rows = [
        (pack_object([n for n in order if row[n]], [row[n] for n in order if row[n]]), metadata)
        for row in zip(*cells.values(), strict=True)
    ]
    texts = {name: f"decimal({p},{s})" for name, (p, s) in zip(names, cells, strict=True)}
    found = both(structs(rows), texts)
    return {kind: [r[name] for r in found] for kind, name in zip(cells, names, strict=True)}


def assert_exact(
    numbers: Sequence[bytes | None], found: Sequence[Decimal | None], precision: int, scale: int
) -> None:
    """Each decimal is there exactly if it fits, by integers alone."""
    for value, taken in zip(numbers, found, strict=True):
        if value is not None and value[0] != DOUBLE << 2:
            own = int.from_bytes(value[2:], "little", signed=True)
            unscaled = Fraction(own * 10**scale, 10 ** value[1])
            fits = unscaled.denominator == 1 and abs(unscaled) < 10**precision
            assert taken == (Decimal(f"{unscaled.numerator}E-{scale}") if fits else None), value


def test_a_decimal_fits_by_its_digits_alone_however_many_documents_there_are() -> None:
    """Guards: numbers of more digits than Python's default context has, and any other context."""
    assert len(DECIMALS) > 80
    cells = {kind: boundaries(*kind) for kind in DECIMALS}
    found = into_decimals(cells)
    for kind, numbers in cells.items():
        assert_exact(numbers, found[kind], *kind)
    with localcontext(prec=3):
        assert into_decimals(cells) == found


def near(precision: int, scale: int) -> st.SearchStrategy[bytes | None]:
    """Numbers next to a power of ten, many of them of as many digits as a type takes."""
    power = st.integers(0, precision + 2) | st.integers(precision, precision + 2)
    whole = st.builds(
        lambda factor, power, less: factor * 10**power + less,
        *(st.sampled_from([-1, 1, 5, 9]), power, st.integers(-6, 6)),
    )
    exact = st.builds(number, whole, st.integers(scale, scale + 2))
    return exact | st.floats().map(double)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 38))
def test_any_number_fits_any_decimal_type_alike(data: st.DataObject, precision: int) -> None:
    scale = data.draw(st.integers(0, precision))
    numbers = data.draw(st.lists(near(precision, scale), min_size=1, max_size=40))
    found = into_decimals({(precision, scale): numbers})[precision, scale]
    assert_exact(numbers, found, precision, scale)


PLACES = {
    "s": "string from a.s",
    "n": "decimal(18,2) from a.n",
    "l": "array<struct<x: int, y: string>>",
    "m": "map<string,double>",
    "t": "timestamp from a.b.t",
    "v": "variant from a.b",
}
DOCUMENT = bson.encode(
    {
        "a": {"s": "text", "n": Decimal128("1.20"), "b": {"t": NOW, "q": [1, {"r": 2}]}, "z": 1},
        "l": [{"x": 1, "y": "y"}, {"y": None}],
        "m": {"k": 1.5, "long name of a key": 2},
        "other": {"é": [1], "s": "again"},
    }
)


def test_every_single_byte_of_a_variant_may_be_wrong() -> None:
    value, metadata = encoder("variant")(DOCUMENT)
    wrong = [(each, metadata) for each in spoiled(value)]
    wrong += [(value, each) for each in spoiled(metadata)]
    found = both(structs(wrong), PLACES)
    whole = [tuple((row["_rescued"] or {}).values()) for row in found]
    assert 0 < sum(map(eq, whole, wrong)) < len(wrong)


def test_what_is_damaged_is_no_pattern_for_the_sound_documents_of_its_shape() -> None:
    value, metadata = encoder("variant")(DOCUMENT)
    for at in range(0, len(value), 3):
        damaged = value[:at] + bytes([value[at] ^ 0x40]) + value[at + 1 :]
        both(structs([(damaged, metadata), (value, metadata)] * 2), PLACES)


def spoiled(whole: bytes) -> Iterator[bytes]:
    for at, byte in enumerate(whole):
        yield whole[:at]
        for other in (0, 1, 3, 0x7F, 0xFF, byte + 1 & 0xFF, byte ^ 0x40):
            yield whole[:at] + bytes([other]) + whole[at + 1 :]


def test_damaged_variants_of_any_documents_are_the_same() -> None:
    draw, pool = random.Random(5), values(5, 500)
    rows = variants(drawn(draw, pool)[1] for _ in range(700)).to_pylist()
    for row in rows:
        name = draw.choice(("value", "value", "metadata"))
        changed = bytearray(row[name])
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        row[name] = bytes(changed)
    for _ in range(5):
        both(pa.array(rows, VARIANT), columns(draw))


def test_what_is_large_is_the_same() -> None:
    many = {f"field {n}": n for n in range(400)}
    documents = [
        {"l": list(range(5000)), "o": many, "s": "x" * 70_000, "m": {"k" * 300: "v" * 300}},
        {"l": [[n] for n in range(300)], "o": {"x": many, "y": ["z" * 70_000] * 300}},
    ]
    texts = {
        "l": "array<bigint>",
        "s": "string",
        "m": "map<string,string>",
        "x": "int from o.x.`field 7`",
    }
    both(variants(bson.encode(each) for each in documents), texts)
    both(
        variants(bson.encode(each) for each in documents),
        texts | {"l": "array<array<int>>", "o": "variant"},
    )


def test_a_part_of_a_column_with_nulls_is_the_same_whatever_its_binaries_are() -> None:
    documents = variants([DOCUMENT] * 3)
    nulls = pa.array([None, *documents.to_pylist(), None], VARIANT)
    assert [row and row["s"] for row in both(nulls, PLACES)] == [None, "text", "text", "text", None]
    assert both(nulls.slice(1, 2), PLACES) == both(documents.slice(1), PLACES)
    large = pa.struct([(name, pa.large_binary()) for name in ("value", "metadata")])
    assert both(nulls.cast(large), PLACES) == both(nulls, PLACES)


def test_variants_have_no_names_but_their_own() -> None:
    (row,) = both(variants([DOCUMENT]), PLACES)
    found = {name: dictionary(row[name]["metadata"]) for name in ("v", "_rescued")}
    assert {name: set(found[name] or ()) for name in found} == {
        "v": {b"t", b"q", b"r"},
        "_rescued": {b"a", b"z", b"other", "é".encode(), b"s"},
    }


def test_documents_are_converted_at_once_as_soon_as_a_process_has_had_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards: the many small batches of a mirror, which took ten times as long."""
    monkeypatch.setattr(typed_columns, "_taken", Total())
    parsed = Columns.parse(PLACES)
    kind = to_arrow_type(StructType(parsed.fields()), timezone="UTC")
    seen = list[str]()
    for name in ("convert_one_by_one", "convert_at_once"):
        monkeypatch.setattr(typed_columns, name, lambda *_, name=name: seen.append(name))
    documents = variants([DOCUMENT])
    for count in (0, 10, 10_000, 10):
        typed_columns.take_columns(
            pa.concat_arrays([documents] * count + [documents[:0]]), plan_of(parsed.columns), kind
        )
    assert seen == 2 * ["convert_one_by_one"] + 2 * ["convert_at_once"]
