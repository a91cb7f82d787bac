"""Free ports of 127.0.0.1 that stay free until they are used."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port that nothing listens on, below the range from which the kernel takes ports for outgoing connections.

    A port that the kernel gave for "any free one" may serve another connection as soon as it is closed, and a server that is stopped and
    started again would not get its port back.
    """
    for port in random.sample(range(20000, 32000), 500):
        with socket.socket() as probe:
            # else a port in TIME_WAIT looks taken, which servers (Go sets the option) can use
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port of 127.0.0.1 between 20000 and 32000")
