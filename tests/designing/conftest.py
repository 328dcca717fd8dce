"""What the tests of this folder share stands beside them, and the made-up machine beside those of the search."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "searching")]
