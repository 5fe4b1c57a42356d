"""Which hosts are on this machine or in a private network, where text and keys may travel without encryption."""

import ipaddress

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
    """True for an address of this machine or of a private network. Of names only `localhost`: others may lead away."""
    address = literal(host)
    if address is None:
        return host == "localhost"
    found = getattr(address, "ipv4_mapped", None) or address
    return any(found in network for network in NETWORKS)
