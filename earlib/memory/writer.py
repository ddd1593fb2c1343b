"""One thread that makes all changes of an object, so that no signal interrupts a change."""

import _thread
import os
import queue
from collections.abc import Callable
from typing import Any


class Writer:
    """Runs one call after another in its own thread; the caller waits until its call is over.

    Signals reach the main thread alone: the caller raises their exceptions once the change is over. The thread has
    torch's modes at their defaults, whatever the caller has switched off. It serves all calls, since a new thread would
    start torch's threads again, which takes longer than an update.
    """

    def __init__(self):
        self._calls, self._process = queue.SimpleQueue(), os.getpid()
        # `threading`'s own start may hang after a signal.
        self._thread = _thread.start_new_thread(serve, (self._calls,))

    def in_own_process(self) -> bool:
        """Tell whether this process started the thread, and is not a fork of the one that did."""
        return self._process == os.getpid()

    def check_process(self) -> None:
        """Refuse a forked process, which has neither this thread nor those of torch: its products would hang."""
        if not self.in_own_process():
            raise RuntimeError(
                f"the memory belongs to process {self._process}, which this one ({os.getpid()}) was forked from; "
                "use it there, or load a copy of its folder here"
            )

    def end(self) -> None:
        """Let the thread end after the calls that wait."""
        self._calls.put(None)

    def __call__(self, work: Callable[[], Any]) -> Any:
        """Return what `work()` returns; a RuntimeError in a forked process."""
        self.check_process()
        if _thread.get_ident() == self._thread:
            raise RuntimeError("a function that a change calls, as `features`, may read the memory and nothing else")
        outcome: list[Any] = []
        over, interrupted = _thread.allocate_lock(), None
        over.acquire()
        self._calls.put((work, outcome, over))
        while not outcome:
            try:
                over.acquire()
            except BaseException as error:
                interrupted = error
        result, failed = outcome.pop()
        if interrupted or failed:
            raise interrupted or failed
        return result


def serve(calls: queue.SimpleQueue) -> None:
    """Run calls until one is None."""
    while (call := calls.get()) is not None:
        work, outcome, over = call
        try:
            outcome.append((work(), None))
        except BaseException as error:
            outcome.append((None, error))
        over.release()
        del call, work, outcome  # they hold the object
