"""Which hosts are on this machine or in a private network. `near` is narrow: there text and keys may travel without
encryption. `private` is wide: a stranger's redirect may not lead there.
"""

import ipaddress
import socket

NETWORKS = tuple(  # 100.64/10 is not there, for a carrier's customers share it
    ipaddress.ip_network(one)
    for one in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"),
        *("::1/128", "fc00::/7", "fe80::/10"),
    )
)


def literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that `host` spells out; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def near(host: str) -> bool:
    """True for an address of this machine or of a private network. `localhost` is the only name: others may lead
    away."""
    address = literal(host)
    if address is None:
        return host == "localhost"
    found = getattr(address, "ipv4_mapped", None) or address
    return any(found in network for network in NETWORKS)


def private(host: str) -> bool:
    """True for an address that is not of the public internet, however it is spelled. A name that leads to one is not
    recognised, but for `localhost` and those below it."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = literal(name) or ipaddress.ip_address(socket.inet_aton(name))  # such as 127.1, 0x7f.1, 2130706433
    except OSError:
        return False
    return not (getattr(address, "ipv4_mapped", None) or address).is_global
