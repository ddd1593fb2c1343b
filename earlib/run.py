"""`python -m earlib.run NAME...`: run notebooks headless."""

import sys

from earlib.harness.runner import main

if __name__ == "__main__":
    sys.exit(main())
