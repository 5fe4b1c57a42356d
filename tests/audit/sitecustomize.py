"""Python imports this when it starts, in the suite's own process and in those that the suite starts, since conftest.py
puts this folder into PYTHONPATH: whoever connects to another machine, or asks a name server for one, is written down.

What libzmq connects to is not heard.
"""

import os
import sys
from pathlib import Path

RECORD = "CAESURA_TEST_CONNECTIONS"  # the file that they are written to
OWN = {"", "localhost", os.uname().nodename}


def other(address: object) -> str:
    """The other machine that an address names, or nothing. Paths of sockets are this one's."""
    host = address[0] if isinstance(address, tuple) and address else None
    host = host.decode(errors="replace") if isinstance(host, bytes) else host
    if not isinstance(host, str) or host in OWN:
        return ""
    import ipaddress  # not needed where nobody calls

    try:
        return "" if ipaddress.ip_address(host).is_loopback else host
    except ValueError:  # a name
        return host


def heard(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("socket.connect", "socket.sendto"):
        host = other(arguments[1])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = other((arguments[0],))
    else:
        return
    if host and (record := os.environ.get(RECORD)):
        with Path(record).open("a") as file:
            file.write(f"{event} {host} by {' '.join(sys.argv)[:200]}\n")


sys.addaudithook(heard)
