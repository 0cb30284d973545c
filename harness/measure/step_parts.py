"""The names and kinds of a step's parts, for readers of profiles that need no torch."""

from __future__ import annotations

from typing import Literal

Kind = Literal["operator", "kernel", "collective", "wait", "host"]

DATA_WAIT = "wait for data"
TO_DEVICE = "copy to the device"
DEVICE_IDLE = "the device idles"
COMPILED = "compiled regions"
SYNCHRONIZATION = "synchronization"
COPIES = "copies"
