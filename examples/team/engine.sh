#!/bin/sh
# A Ray of your own on this machine, with serve.yaml, in the foreground: it ends when a part of Ray does. Arguments are
# those of `ray start`.
set -eu
cd "$(dirname "$0")"
. ./ray.env
ray get-auth-token --generate > /dev/null
(until serve deploy serve.yaml; do sleep 2; done) &
exec ray start --head --block "$@"
