"""`python -m muster`."""

from __future__ import annotations

import sys

from muster.arguments import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
