"""A Ray of the door's own, in the network that isolation.py has made: started by the relay and gone with it.

python -m caesura.cluster.head CONFIG
"""

import contextlib
import csv
import logging
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from caesura import logs, paths
from caesura.cluster import config, isolation
from caesura.cluster.router import MAX_STREAMS
from caesura.engine import worker

log = logging.getLogger("caesura.ray")

GRPC_PORT, HTTP_PORT = 9000, 8000  # in a network where nothing else is
GRPC = f"127.0.0.1:{GRPC_PORT}"
APPLICATION = "caesura"
LOOK_S = 1.0
TURN_S = 0.1  # how late it may be noticed that replicas answer
READY = "ready"  # a file that is there from then on
SETTINGS = {  # those of any Ray that runs our replicas: examples/team/ray.env has them for an administrator's
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Not documented: a second line after the algorithm. With it, 40 % of documents move as a replica comes, not 65.
    "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": "hdr(x-session-id)\n    hash-type consistent",
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    "RAY_SERVE_HAPROXY_H2_FE_MAX_CONCURRENT_STREAMS": str(MAX_STREAMS),  # else 100, over the relay's one connection
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_worker_niceness": "0",  # else 15: next to other work a replica would hardly run
}
HEAD_LOST_S = 5  # until Ray ends without its head process, which nothing starts again but we; else 60
SOCKET = "admin.sock"  # of HAProxy, in a folder for each node
MAX_PATH = 36  # bytes; of the 107 of a socket's path HAProxy and Ray take the rest


def home() -> Path:
    """The folder of its files, which only this user may enter. Raises isolation.NotIsolated."""
    folder = paths.private(paths.runtime() / "ray")
    if len(os.fsencode(folder)) > MAX_PATH:
        raise isolation.NotIsolated(f"{folder} is too long for Ray's sockets; set CAESURA_RUNTIME to a shorter path.")
    return folder


def environment(folder: Path) -> dict[str, str]:
    """The environment that Ray reads before it is imported; its files lie in `folder`."""
    proxy = folder / "h"
    return SETTINGS | {
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEAD_LOST_S),
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(proxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(proxy / SOCKET),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(proxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(proxy / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(proxy / "metrics.sock"),
    }


def ready() -> bool:
    """True once all replicas answer; before that, all documents would be at the first one."""
    return (home() / READY).exists()


def start(path: str) -> "subprocess.Popen[bytes]":
    """Start `head` as a child; it ends with this process."""
    folder = home()
    shutil.rmtree(folder / "h", ignore_errors=True)  # of a Ray that was lost
    paths.private(folder / "h")
    (folder / READY).unlink(missing_ok=True)
    paths.write(folder / "token", secrets.token_hex(32).encode())
    command = [sys.executable, "-P", "-m", "caesura.cluster.head", path]
    return subprocess.Popen(
        [*isolation.together(), *command],
        stdin=subprocess.PIPE,
        stdout=sys.stderr,
        cwd="/",
        env=os.environ | environment(folder),
    )


def main(path: str) -> None:
    threading.Thread(target=worker.exit_at_end_of_input, daemon=True).start()  # the relay's end
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions, gRPCOptions

    from caesura.cluster import deployment

    team = config.read(Path(path))
    fleet = team.engine
    ray.init(
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        num_cpus=promised(fleet, os.cpu_count() or 1),
        log_to_driver=False,
        logging_level=logging.WARNING,
        _temp_dir=str(home() / "t"),  # whose mode Ray changes
    )
    serve.start(
        http_options=HTTPOptions(host="127.0.0.1", port=HTTP_PORT),
        grpc_options=gRPCOptions(
            port=GRPC_PORT, grpc_servicer_functions=[deployment.SERVICER], enable_reflection=False
        ),
    )
    serve.run(deployment.of(fleet), name=APPLICATION, route_prefix="/")
    while proxied(home() / "h") < fleet.replicas:
        time.sleep(TURN_S)
    (home() / READY).touch()
    log.info("%d replicas are ready", fleet.replicas)
    while True:
        threading.Event().wait(LOOK_S)
        serve.status()  # raises where Ray is lost


def promised(fleet: config.Fleet, cpus: int) -> int:
    """The CPUs that Ray is told of: enough that it never refuses a replica, since it only counts them."""
    wanted = math.ceil(fleet.cpus * max(fleet.replicas, fleet.most))
    if wanted > cpus:
        log.warning(
            "the replicas may need %d CPUs and this machine has %d: they will wait for each other", wanted, cpus
        )
    return max(cpus, wanted + 2)


def proxied(folder: Path) -> int:
    """The replicas that HAProxy sends streams to; one is enough for Ray's own wait. 0 while HAProxy is not there."""
    if sys.platform == "win32":  # Ray is started on Linux alone
        return 0
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(next(folder.glob(f"*/{SOCKET}"), folder)))
        asking.sendall(b"show stat\n")
        rows = csv.DictReader(asking.makefile())
        return sum(
            row["# pxname"] == f"grpc-{APPLICATION}" and "REPLICA" in row["svname"] and row["status"].startswith("UP")
            for row in rows
        )
    return 0


if __name__ == "__main__":
    logs.begin(logging.INFO, "%(asctime)s ray %(levelname)s %(message)s")
    main(sys.argv[1])
