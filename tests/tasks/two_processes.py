"""What does not depend on the process that computes it."""

from __future__ import annotations

import os
import subprocess
import sys


def printed_under_two_hash_seeds(script: str) -> list[str]:
    """What a script prints in two processes with different PYTHONHASHSEED."""
    return [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
