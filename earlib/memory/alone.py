"""One thread for all that changes an object, so that no signal cuts a change in two."""

import _thread
import os
import queue


class Alone:
    """Runs one call after another in a thread of its own; the caller waits until its call is over.

    Signals reach the main thread alone: what they raise does not cut a change in two, and is raised by the caller once
    the change is over. The thread also has torch's modes at their defaults, whatever the caller has switched off. It is
    one for all calls, since a new one would start torch's threads anew, which takes longer than an update.
    """

    def __init__(self):
        self._calls, self._process = queue.SimpleQueue(), os.getpid()
        _thread.start_new_thread(_serve, (self._calls,))  # `threading`'s own start may hang after a signal

    def mine(self):
        """Whether this process has the thread, and was not forked from the one that has."""
        return self._process == os.getpid()

    def end(self):
        """Let the thread end after what it has to do."""
        self._calls.put(None)

    def __call__(self, work):
        """Run `work`, without arguments, and return what it returns.

        Raises
        ------
        RuntimeError
            In a process that was forked from the one that has the thread.
        """
        if not self.mine():
            raise RuntimeError(
                f"the memory belongs to process {self._process}, which this one ({os.getpid()}) was forked from; "
                "change it there, or load a copy of its folder here"
            )
        outcome, over, interrupted = [], _thread.allocate_lock(), None
        over.acquire()

        def run():
            try:
                outcome.append((work(), None))
            except BaseException as error:
                outcome.append((None, error))
            finally:
                over.release()

        self._calls.put(run)
        while not outcome:
            try:
                over.acquire()
            except BaseException as error:
                interrupted = error
        result, failed = outcome.pop()
        if interrupted or failed:
            raise interrupted or failed
        return result


def _serve(calls):
    """What the thread does until it is ended."""
    while (call := calls.get()) is not None:
        call()
        del call  # it holds what it changes
