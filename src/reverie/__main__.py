"""Make ``python -m reverie`` the command ``reverie``."""

from __future__ import annotations

import sys

from reverie.cli import main

if __name__ == "__main__":
    sys.exit(main())
