"""What is read is read while what came before it is made use of."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_END = object()


def ahead(items: Iterator[T], interrupt: Callable[[], None]) -> Generator[T]:
    """The same items, in order; the next one is already being asked for, in another thread, while
    the one before is used. So one more is held than without.

    An error comes where it would have come without this. `items` is used by one thread at a time,
    and is closed, by that other thread, when this is; what it waits for then has to come first. So
    `interrupt` is called before, unless all has been read: it is to end what may take long.
    """
    with ThreadPoolExecutor(1, "ahead") as reader:
        try:
            coming = reader.submit(next, items, _END)
            while (item := coming.result()) is not _END:
                coming = reader.submit(next, items, _END)
                yield item  # type: ignore[misc]
        except BaseException:
            interrupt()
            raise
        finally:
            if isinstance(items, Generator):
                reader.submit(items.close).result()
