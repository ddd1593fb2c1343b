"""`python -m earlib.grid`: runs on many processes or machines, into the run cache."""

import sys

from earlib.harness.grid import main

if __name__ == "__main__":
    sys.exit(main())
