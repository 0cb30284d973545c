"""What the two sides of a gate must agree on, as an arm may be of another revision than the gate.

A rank of an arm is started with the arguments FOLDER SOCKET ARM; FOLDER has its `trial.json`. It
connects to SOCKET and says which protocol it speaks before it reads anything else. All messages are
lines of JSON.
"""

from __future__ import annotations

# To be raised with every change of the messages, of the arguments or of what `trial.json` holds.
PROTOCOL = 4
