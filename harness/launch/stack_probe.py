"""Prints what an interpreter has, as a line of JSON: `PYTHON stack_probe.py MODULE…`.

It runs under interpreters that may be too old for the harness, so it imports nothing of it, and loads
none of the modules.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import metadata
from importlib.util import find_spec


def main() -> None:
    """Print the interpreter, which of the modules are missing, and all packages with versions."""
    del sys.path[0]  # the folder of this script, whose modules are not the interpreter's
    packages: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            packages.setdefault(name, distribution.version)  # the one that is imported comes first
    report = {
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "missing": [module for module in sys.argv[1:] if find_spec(module) is None],
        "packages": packages,
        "variable": os.environ.get("HARNESS_STACK_PROBE"),
        "folder": os.getcwd(),  # noqa: PTH109 - as little as possible
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
