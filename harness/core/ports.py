"""Network addresses and ports at which the ranks of a trial, or of a measurement, meet."""

from __future__ import annotations

import errno
import os
import random
import socket
import time
from contextlib import suppress
from ipaddress import ip_address

from harness.core.errors import BadInput, HarnessError

LOOPBACK = "127.0.0.1"
# Services such as sshd or a database usually listen below, and Linux hands out those above to clients.
PORTS = range(20000, 32768)
LISTEN_TIMEOUT = 60.0  # seconds
LOOK_SECONDS = 0.005  # between two looks at whether something listens
CANDIDATES = 20  # ports that are tried before the kernel is asked to choose


def node_address(interface: str | None) -> str:
    """Return the address at which other nodes reach this one.

    With an `interface`, such as ib0, that is its IPv4 address, or its IPv6 address if it has no
    other. Without, it is the node's name in Slurm, or else its host name. Raises BadInput if the
    interface has no address.
    """
    if interface is None:
        return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    import psutil

    interfaces = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in interfaces.get(interface, ()):
            if address.family == family:
                return str(address.address)
    allowed = ", ".join(sorted(interfaces))
    raise BadInput(
        f"GLOO_SOCKET_IFNAME: found {interface!r} without an address; allowed: {allowed}"
    )


def listen(address: str, port: int) -> socket.socket:
    """Listen on a port of this node at one address, by name or number.

    Two kinds of names are listened for on all interfaces: those that mean the loopback interface to
    this node alone, as Debian's 127.0.1.1, and those of an address that this node does not have
    itself, as behind a translation. Other nodes may reach it by either.
    """
    addresses = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    family, _, _, _, resolved = addresses[0]
    is_loopback = ip_address(resolved[0]).is_loopback
    if not is_loopback or address in (resolved[0], "localhost"):
        try:
            return socket.create_server(resolved[:2], family=family)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    return socket.create_server(("", port), family=family)


def wait_for_listener(address: str, port: int) -> None:
    """Return as soon as something listens on a port, and after LISTEN_TIMEOUT at the latest."""
    deadline = time.monotonic() + LISTEN_TIMEOUT
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((address, port), LISTEN_TIMEOUT):
            return
        time.sleep(LOOK_SECONDS)


def free_port() -> int:
    """Return a port of this machine on which nothing listens now; raises HarnessError without any.

    Seconds pass until rank 0 listens on it. In the meantime the kernel may hand out any port of its
    ephemeral range to a process that connects somewhere, so the port is drawn from below that. Drawn,
    because processes that look at the same moment should not find the same port; from the system's
    entropy, so that a trial's seed neither decides nor is disturbed by it.
    """
    candidates = random.SystemRandom().sample(PORTS, CANDIDATES)
    for port in [*candidates, 0]:  # for port 0, the kernel chooses
        # Bound, which fails if somebody listens there, and not listened on itself.
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return int(probe.getsockname()[1])
    raise HarnessError("no port of this node is free")
