"""``python -m quantkit`` is the command ``quantkit``."""

import sys

from quantkit.cli import main

if __name__ == "__main__":
    sys.exit(main())
