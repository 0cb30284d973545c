"""The arguments that all parts take, and where they leave their figures."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tests.programs.gpu.outcome import FIGURES


def parser() -> argparse.ArgumentParser:
    """Return a parser of the part's folder and device, to which a part adds its own arguments."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--device", choices=("cuda", "cpu"), required=True)
    return arguments


def leave(folder: Path, figures: dict[str, Any]) -> None:
    """Write the figures of a part, and print them."""
    print(json.dumps(figures))
    (folder / FIGURES).write_text(json.dumps(figures) + "\n")
