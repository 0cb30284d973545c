"""Compares the clocks of two machines: one serves its time on a port, the other asks for it.

The protocol is a line each way: any text, and the time in seconds since the epoch.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

EXCHANGES = 8  # that a measurement makes; only the quickest counts
CONNECT_SECONDS = 10.0  # that a connection may take


class _ClockHandler(socketserver.StreamRequestHandler):
    """Answers every line with the time, in seconds since the epoch."""

    def handle(self) -> None:
        """Serve one connection until the other side closes it."""
        for _ in self.rfile:
            self.wfile.write(f"{time.time()!r}\n".encode())


class _ClockServer(socketserver.ThreadingTCPServer):
    """Serves several nodes at once, and does not wait for their connections when it closes."""

    daemon_threads = True
    block_on_close = False


@contextmanager
def serve_clock() -> Iterator[int]:
    """Serve this machine's time while the block lasts; yields the port."""
    with _ClockServer(("", 0), _ClockHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def clock_offset(address: str, port: int) -> float:
    """Return the seconds by which the clock served there is ahead of this machine's.

    This is the offset of NTP (RFC 5905, section 8), which takes both ways of an exchange for
    equally long. Of several exchanges, the one with the shortest round trip counts, as its error is
    at most half of that trip.

    Raises OSError if the server can't be reached.
    """
    exchanges = []
    with (
        socket.create_connection((address, port), timeout=CONNECT_SECONDS) as connection,
        connection.makefile("rw") as stream,
    ):
        for _ in range(EXCHANGES):
            sent_at = time.time()
            stream.write("now?\n")
            stream.flush()
            line = stream.readline()
            received_at = time.time()
            if not line:  # as a proxy does that can't reach the server
                raise ConnectionError("closed the connection")
            remote_time = float(line)
            offset = remote_time - (sent_at + received_at) / 2
            exchanges.append((received_at - sent_at, offset))
    _round_trip, offset = min(exchanges)
    return offset
