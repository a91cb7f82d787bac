"""Ports of 127.0.0.1 that stay usable for a server that is stopped and started again."""

from __future__ import annotations

import random
import socket


def listen() -> socket.socket:
    """A listening socket on a free port, below the range from which the kernel takes ports for outgoing connections.

    A port that the kernel gave for "any free one" may serve another connection as soon as it is closed, and a server that is stopped and
    started again would not get its port back.
    """
    for port in random.sample(range(20000, 32000), 500):
        listening = socket.socket()
        # else a port in TIME_WAIT looks taken, which servers (Go sets the option) can use
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen(128)
        except OSError:
            listening.close()
            continue
        return listening
    raise OSError("no free port of 127.0.0.1 between 20000 and 32000")


def free_port() -> int:
    """A port that nothing listens on at the moment, for a server that can't take over a socket."""
    with listen() as listening:
        port: int = listening.getsockname()[1]
        return port
