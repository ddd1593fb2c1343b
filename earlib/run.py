"""`python -m earlib.run NAME...`: run notebooks headless."""

import os
import signal
import sys


def _interrupt_once(*_):
    """Let no second Ctrl-C cut short what the first one has begun: the end of the kernels."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # bm25s starts JAX if it is there, and that takes most of a GPU
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in a shell's background
            signal.signal(signal.SIGINT, _interrupt_once)
        from earlib.harness.runner import main  # here because it takes seconds, in which Ctrl-C may come too

        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; older results are as they were", file=sys.stderr)
        sys.exit(130)
    except ModuleNotFoundError as error:  # of an extra that is not installed
        sys.exit(str(error))
