"""Prefetch: read the next item in a thread while the caller uses the current one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_END = object()


def prefetch(
    items: Iterator[T],
    interrupt: Callable[[], None],
    is_large: Callable[[T], bool] = lambda item: False,
) -> Generator[T]:
    """Yield the items in order, while another thread already reads the next one.

    So one item more is in memory than without it, unless the item is large. An error is raised
    after the same item as without it. Only one thread uses `items` at a time. When this generator
    is closed, the other thread closes `items` as soon as the read in progress has ended.

    Args:
        items: what to read.
        interrupt: called before that, unless all items were read; it must end a read that may take
            long.
        is_large: whether the next item is read only when the caller has used this one.
    """
    with ThreadPoolExecutor(1, "ahead") as reader:
        try:
            pending = reader.submit(next, items, _END)
            # A list, so that nothing here refers to an item that the caller has dropped.
            while (item := [pending.result()])[0] is not _END:
                waits = is_large(item[0])  # type: ignore[arg-type]
                if not waits:
                    pending = reader.submit(next, items, _END)
                yield item.pop()  # type: ignore[misc]
                if waits:
                    pending = reader.submit(next, items, _END)
        except BaseException:
            interrupt()
            raise
        finally:
            if isinstance(items, Generator):
                reader.submit(items.close).result()
