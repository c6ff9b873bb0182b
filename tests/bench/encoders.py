"""CPU time of the encoders per document, beside plain Python and a copy of the same bytes, and to
compile and load them.

`python -m tests.bench.encoders` needs no server and no Spark, and writes build/bench-encoders.json.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import bson
import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType
from rich.console import Console

from cdc.arrow import cells
from cdc.arrow.typed_columns import convert_at_once, convert_one_by_one
from cdc.delta.columns import Columns
from cdc.delta.columns.arrow_columns import plan_of
from cdc.demo import make_order
from cdc.kernel import Places
from cdc.model import document_key_json, key_of, merge_key
from cdc.model.encoding import encoder
from tests.bench.result import Result, machine, markdown, show, written
from tests.bench.snapshots import COLUMNS

_OUT, _RUNS = Path("build"), 15
_BINARIES = [pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")]
_VARIANT = pa.struct([_BINARIES[0], _BINARIES[1].with_type(pa.dictionary(pa.int32(), pa.binary()))])
Document = dict[str, Any]


class _Encoder(NamedTuple):
    """Compiled code and plain Python for the same columns."""

    compiled: Callable[[Places], object]
    plain: Callable[[Sequence[bytes]], object]


def run() -> list[Result]:
    chance = random.Random(7)
    orders = [make_order(number, chance) for number in range(20_000)]
    results = [
        _measure("orders, VARIANT", orders, _VARIANTS, 1.2),
        _measure("orders, relaxed JSON", orders, _JSON, 1.2),
        _measure("orders, keys", orders, _KEYS, 0.15),
        _measure("orders, nine typed columns, from VARIANT", orders, _typed(orders), 1.5),
    ]
    # At most what they took at 592ea4e, before the encoders learnt shapes, on the same machine.
    for name, count, make, most in (
        ("2,000 fields", 100, _wide, 5900.0),
        ("100 levels", 2_000, _deep, 11.6),
        ("20 names of 5,000", 5_000, _many_shaped, 2.55),
        ("5 names of 12", 20_000, _sparse, 0.79),
        ("arrays of 200 numbers", 2_000, _arrays, 10.3),
    ):
        documents = [make(number, chance) for number in range(count)]
        results.append(_measure(f"{name}, VARIANT", documents, _VARIANTS, most))
    return [*results, *_start()]


_LOAD = """
import resource
from cdc.kernel import loading
loading.columns(), loading.oplog(), loading.typed()
for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF):
    used = resource.getrusage(who)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)
"""


def _start() -> Iterator[Result]:
    """All compiled functions, for a process whose cache is empty: compiled, then loaded."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": f"{cache}/compiled"}
        told = subprocess.check_output([sys.executable, "-c", _LOAD], env=environment, text=True)
    compiling, memory, loading, _ = map(float, told.split())
    goal = f"at most 25 CPU s, and 300 MB: {memory:.0f} MB"
    yield Result("compile all", "CPU s", compiling, goal, compiling <= 25 and memory <= 300)
    yield Result("start Python and load all", "CPU s", loading, "at most 0.4", loading <= 0.4)


def _wide(number: int, chance: random.Random) -> Document:
    return {"_id": number, **{f"field{each}": number + each for each in range(2_000)}}


def _deep(number: int, chance: random.Random) -> Document:
    found: Document = {"n": number}
    for _ in range(99):
        found = {"inner": found}
    return {"_id": number, **found}


def _many_shaped(number: int, chance: random.Random) -> Document:
    names = chance.sample(range(5_000), 20)
    return {"_id": number, **{f"name{each}": each for each in names}}


def _sparse(number: int, chance: random.Random) -> Document:
    names = sorted(chance.sample(range(12), 5))
    return {"_id": number, **{f"name{each}": f"text {each}" for each in names}}


def _arrays(number: int, chance: random.Random) -> Document:
    return {"_id": number, "values": [chance.randrange(10**6) for _ in range(200)]}


def _encode_all(encode: Callable[[bytes], object], documents: Sequence[bytes]) -> object:
    return [encode(document) for document in documents]


def _keys(document: bytes) -> tuple[str, str]:
    key = key_of(document)
    return merge_key(key), document_key_json(key)


_VARIANTS = _Encoder(
    lambda places: cells.encode_images(places, _VARIANT, "variant", "relaxed"),
    partial(_encode_all, encoder("variant", "relaxed")),
)
_JSON = _Encoder(
    lambda places: cells.encode_images(places, pa.string(), "json", "relaxed"),
    partial(_encode_all, encoder("json", "relaxed")),
)
_KEYS = _Encoder(lambda places: cells.encode_keys(places, alone=False), partial(_encode_all, _keys))


def _typed(orders: Sequence[Document]) -> _Encoder:
    """The conversion alone: a copy writes the VARIANTs to its changelog in any case."""
    columns = Columns.parse(COLUMNS)
    kind = to_arrow_type(StructType(columns.fields()), timezone="UTC")
    plan = plan_of(columns.columns)
    documents = cells.encode_images(_places(orders), _VARIANT, "variant", "relaxed")
    return _Encoder(
        lambda places: convert_at_once(documents, plan, kind),
        lambda sample: convert_one_by_one(documents.slice(0, len(sample)), plan, kind),
    )


def _places(documents: Sequence[Document]) -> Places:
    return Places.concatenate(map(bson.encode, documents))


def _measure(work: str, documents: Sequence[Document], by: _Encoder, goal: float) -> Result:
    places = _places(documents)
    data, sample = np.frombuffer(places.data, np.uint8), [*places[:200]]
    room = np.empty_like(data)
    ours = _micros(partial(by.compiled, places), len(places))
    return Result(
        work,
        "documents per CPU second",
        ours=1e6 / ours,
        peer=1e6 / _micros(partial(by.plain, sample), len(sample)),
        limit_ratio=_micros(partial(np.copyto, room, data), len(places)) / ours,
        goal=f"at most {goal:g} CPU us per document: {ours:.3g}",
        met=ours <= goal,
    )


def _micros(call: Callable[[], object], documents: int) -> float:
    """The median CPU time of a call, after one to warm up, in microseconds per document."""
    call()
    taken = []
    for _ in range(_RUNS):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return statistics.median(taken) / documents * 1e6


def main() -> None:
    results, console = run(), Console()
    caption = f"{machine()}: the peer is plain Python, the limit a copy of the same bytes"
    written(_OUT / "bench-encoders.json", results)
    (_OUT / "bench-encoders.md").write_text(markdown(caption, results))
    console.print(caption, highlight=False)
    show(console, results)


if __name__ == "__main__":
    main()
