"""Positions of many documents in one buffer, and the status of each cast value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, overload

import numpy as np

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


class Places(Sequence[bytes]):
    """Document n is `data[starts[n]:stops[n]]`; there is none if `starts[n]` is negative."""

    def __init__(self, data: bytes, starts: Numbers, stops: Numbers) -> None:
        self.data, self.starts, self.stops = data, starts, stops

    @classmethod
    def concatenate(cls, documents: Iterable[bytes]) -> Places:
        """Copy documents into one buffer."""
        copies = list(documents)
        stops = np.cumsum([len(document) for document in copies], dtype=np.int64)
        return cls(b"".join(copies), np.concatenate([[0], stops[:-1]]).astype(np.int64), stops)

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
        """The total size of all documents in bytes."""
        return int(np.sum(self.stops - self.starts, where=self.starts >= 0))

    @property
    def longest(self) -> int:
        """The size of the largest document in bytes."""
        return int(np.max(self.stops - self.starts, initial=0))

    @property
    def arrays(self) -> tuple[Any, Numbers, Numbers]:
        """(data, starts, stops), the data as an array of bytes."""
        return np.frombuffer(self.data, np.uint8), self.starts, self.stops


MISSING: Final = 0  # no value, or null
TAKEN: Final = 1
MISFIT: Final = 2
