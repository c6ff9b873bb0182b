"""What is read ahead is the same, one at a time, and no more than one."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from cdc.mongo.connection import UNLIMITED, Pace
from cdc.mongo.connection.throttle import PaceEnded
from cdc.tasks.prefetch import prefetch


class Numbers:
    """Counts what was asked of it, and by which threads; ends with an error if `fails`."""

    def __init__(self, count: int, fails: bool = False) -> None:
        self.count, self.fails = count, fails
        self.asked, self.threads, self.is_closed = 0, set[int](), False
        self.changed = threading.Condition()

    def read(self) -> Iterator[int]:
        try:
            for number in range(self.count):
                self.threads.add(threading.get_ident())
                with self.changed:
                    self.asked += 1
                    self.changed.notify()
                yield number
            if self.fails:
                raise LookupError("the source")
        finally:
            self.threads.add(threading.get_ident())
            self.is_closed = True

    def wait(self, asked: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.asked >= asked, 10)


def test_all_come_once_in_order_and_are_read_by_one_other_thread() -> None:
    numbers = Numbers(1000)
    assert list(prefetch(numbers.read(), lambda: None)) == list(range(1000))
    assert len(numbers.threads - {threading.get_ident()}) == len(numbers.threads) == 1


def test_the_next_one_is_read_meanwhile_and_none_after_it() -> None:
    numbers = Numbers(10)
    read = prefetch(numbers.read(), lambda: None)
    for number in range(5):
        assert next(read) == number
        numbers.wait(number + 2)
        assert numbers.asked == number + 2
    read.close()


def test_after_a_large_one_the_next_one_is_read_only_once_it_is_used() -> None:
    """Guards: events of 14 MB, of which two and what is made of them do not fit into a task."""
    numbers = Numbers(4)
    read = prefetch(numbers.read(), lambda: None, lambda number: number == 1)
    assert next(read) == 0
    numbers.wait(2)
    assert next(read) == 1
    time.sleep(0.2)
    assert numbers.asked == 2
    assert next(read) == 2
    numbers.wait(4)
    assert [*read] == [3]


def test_an_error_comes_after_all_that_was_read_before_it() -> None:
    numbers = Numbers(3, fails=True)
    found = list[int]()
    with pytest.raises(LookupError):
        found.extend(prefetch(numbers.read(), lambda: None))
    assert found == [0, 1, 2]
    assert numbers.is_closed


def test_what_the_caller_drops_is_freed_while_the_next_one_is_read() -> None:
    """Guards: a reply of a server that stays in memory while its rows are written."""
    read = prefetch((Numbers(number) for number in range(3)), lambda: None)
    dropped = weakref.ref(next(read))
    assert dropped() is None
    read.close()


def test_who_stops_early_leaves_nothing_open() -> None:
    numbers = Numbers(10)
    read = prefetch(numbers.read(), lambda: None)
    next(read)
    read.close()
    assert numbers.is_closed
    assert threading.get_ident() not in numbers.threads
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]


def test_who_stops_early_ends_first_what_the_next_one_waits_for() -> None:
    """Guards: at a byte a second a reply of a few thousand is waited for for hours."""
    pace, waits, ended = Pace(1.0), threading.Event(), list[type[BaseException]]()

    def paced() -> Iterator[int]:
        yield 0
        pace.record(10_000)
        waits.set()
        try:
            pace.wait()
        except BaseException as error:
            ended.append(type(error))
            raise
        yield 1

    read = prefetch(paced(), pace.end)
    next(read)
    assert waits.wait(10)
    closing = threading.Thread(target=read.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert ended == [PaceEnded]


def test_what_is_read_to_its_end_ends_no_pace_and_one_without_a_limit_is_never_ended() -> None:
    """Guards: the next split of the same task; all who share the pace that is none."""
    pace = Pace(1e9)
    assert list(prefetch(iter([1, 2]), pace.end)) == [1, 2]
    pace.record(1)
    pace.wait()
    UNLIMITED.end()
    UNLIMITED.wait()
