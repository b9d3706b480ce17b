"""Small jobs on a few daemon threads, which do not keep the process from exiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def for_each(function: Callable[[T], None], items: Iterable[T], threads: int) -> None:
    """Call ``function(item)`` for every item, on up to ``threads`` threads; return when all have ended.

    The thread pools of the standard library are joined at exit, which would hang if a server does not answer.

    Raises:
        BaseException: what ``function`` raised; if it raised on several threads, that of the thread started first.
    """
    if threads == 1:
        for item in items:
            function(item)
        return
    jobs: SimpleQueue[T | None] = SimpleQueue()
    ends: list[Future[None]] = [Future() for _ in range(threads)]

    def work(end: Future[None]) -> None:
        try:
            while (item := jobs.get()) is not None:
                function(item)
            end.set_result(None)
        except BaseException as error:
            end.set_exception(error)

    for item in items:
        jobs.put(item)
    for end in ends:
        jobs.put(None)
        threading.Thread(target=work, args=(end,), daemon=True).start()
    errors = [end.exception() for end in ends]
    for error in errors:
        if error is not None:
            raise error
