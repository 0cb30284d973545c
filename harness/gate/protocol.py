"""The version of the messages between a gate and its arms, which may be of another revision.

A rank of an arm is started with the arguments FOLDER SOCKET ARM; FOLDER has its `trial.json`. It
connects to SOCKET and sends its protocol version before it reads anything else. All messages are
lines of JSON.
"""

from __future__ import annotations

# Raise it with every change of the messages, the arguments or the content of `trial.json`.
PROTOCOL = 4
