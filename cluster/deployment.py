"""The application that Ray Serve runs, `caesura.cluster.deployment:app`; its arguments are `config.ReplicaSettings`."""

from collections.abc import Mapping
from typing import Any

import msgspec
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from caesura import model_store
from caesura.cluster import scaling
from caesura.cluster.config import Fleet, ReplicaSettings
from caesura.cluster.replica import Replica
from caesura.cluster.sessions import MAX_STREAMS

SERVICER = "caesura.cluster.rpc.add"
DRAIN_S = 90.0  # a stream lives 20 seconds, and its last job a minute at most (router.py)
HEALTH_S = 2.0
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}  # a pool of glibc's for each of Ray's threads would keep parts of old models


def app(arguments: Mapping[str, Any]) -> serve.Application:
    """For `serve deploy`, whose configuration has the arguments, and how many replicas there are. Raises
    msgspec.ValidationError."""
    return _application(msgspec.convert(dict(arguments), ReplicaSettings))


def of(fleet: Fleet) -> serve.Application:
    if fleet.most <= fleet.replicas:
        return _application(fleet, num_replicas=fleet.replicas)
    policy = AutoscalingPolicy(policy_function="caesura.cluster.deployment:scale")
    between = AutoscalingConfig(min_replicas=fleet.replicas, max_replicas=fleet.most, policy=policy)
    return _application(fleet, autoscaling_config=between)


def _application(replica: ReplicaSettings, **number: Any) -> serve.Application:
    deployed = serve.deployment(Replica).options(
        name="engine",
        max_ongoing_requests=MAX_STREAMS,
        graceful_shutdown_timeout_s=DRAIN_S,
        health_check_period_s=HEALTH_S,
        ray_actor_options={
            "num_cpus": replica.cpus,
            "num_gpus": replica.gpus,
            "runtime_env": {"env_vars": ONE_ARENA},
        },
        **number,
    )
    models = {name: model_store.resolve(name) for name in replica.offered}
    return deployed.bind(models, replica.device, replica.models_per_replica)


def scale(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Called by Ray's controller now and then; it keeps to the smallest and the largest number."""
    waits = (context.aggregated_metrics or {}).get("queue_ms", {})
    return scaling.wanted(list(waits.values()), context.current_num_replicas), {}
