"""`python -m earlib.run NAME...`: run notebooks headless."""

import sys

try:
    from earlib.harness.runner import main
except ModuleNotFoundError as error:  # of an extra that is not installed
    sys.exit(str(error))

if __name__ == "__main__":
    sys.exit(main())
