"""Prints what an interpreter has, as a line of JSON.

It runs under interpreters that may be too old for the harness, so it imports nothing of it.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata


def main() -> None:
    """Print the interpreter, and all packages with versions."""
    del sys.path[0]  # the folder of this script, whose modules are not the interpreter's
    packages: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            packages.setdefault(name, distribution.version)  # the one that is imported comes first
    report = {
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "packages": packages,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
