"""``python tests/parity FILE``; ``-m tests.parity`` would find the ``tests`` that some packages install."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from parity import main

sys.exit(main())
