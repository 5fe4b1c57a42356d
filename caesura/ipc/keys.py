"""CURVE keys: made for an endpoint, or kept as those of this machine."""

from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from caesura import paths


@dataclass(frozen=True)
class Keys:
    """A pair of CURVE keys, 32 bytes each. Only `public` is for others."""

    public: bytes
    secret: bytes = field(repr=False)


def new_keys() -> Keys:
    public, secret = zmq.curve_keypair()
    return Keys(z85.decode(public), z85.decode(secret))


def own_keys() -> Keys:
    """This machine's keys, created at the first call. Raises paths.DamagedFile or paths.UnsafeFolder."""
    path = paths.keys() / "secret"
    data = paths.read(path)
    if data is None:
        paths.write(path, new_keys().secret.hex().encode(), replace=False)  # another process may have been first
        data = paths.read(path) or b""
    try:
        secret = bytes.fromhex(data.decode())
        return Keys(z85.decode(zmq.curve_public(z85.encode(secret))), secret)
    except (ValueError, zmq.ZMQError) as error:
        raise paths.DamagedFile(f"{path} is not a key; remove it and pair again.") from error
