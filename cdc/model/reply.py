"""Where documents and values lie in the bytes of many of them, and what became of each value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, overload

import numpy as np

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


class Places(Sequence[bytes]):
    """`data[starts[n]:stops[n]]` is document n; it is none where that begins before 0."""

    def __init__(self, data: bytes, starts: Numbers, stops: Numbers) -> None:
        self.data, self.starts, self.stops = data, starts, stops

    @classmethod
    def joined(cls, documents: Iterable[bytes]) -> Places:
        """Those that lie elsewhere, copied."""
        kept = list(documents)
        stops = np.cumsum([len(document) for document in kept], dtype=np.int64)
        return cls(b"".join(kept), np.concatenate([[0], stops[:-1]]).astype(np.int64), stops)

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[bytes]:
        for start, stop in zip(self.starts.tolist(), self.stops.tolist(), strict=True):
            yield self.data[start:stop]

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Places: ...
    def __getitem__(self, index: int | slice) -> bytes | Places:
        if isinstance(index, slice):
            return Places(self.data, self.starts[index], self.stops[index])
        return self.data[self.starts[index] : self.stops[index]]

    @property
    def size(self) -> int:
        """The bytes of all documents."""
        return int(np.sum(self.stops - self.starts, where=self.starts >= 0))

    @property
    def longest(self) -> int:
        return int(np.max(self.stops - self.starts, initial=0))

    @property
    def located(self) -> tuple[Any, Numbers, Numbers]:
        """The data as an array, and the places."""
        return np.frombuffer(self.data, np.uint8), self.starts, self.stops


MISSING: Final = 0  # there was none, or null
TAKEN: Final = 1
MISFIT: Final = 2
