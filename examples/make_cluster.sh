#!/bin/sh
# Makes one Redis Cluster of the nodes with these names, half of them replicas. Asked again, it only
# makes them meet: their addresses may be new.
#
#   make_cluster.sh cluster-1 cluster-2 cluster-3 cluster-4 cluster-5 cluster-6
set -eu
PORT=${PORT:-6379}

# Nodes know each other by address, not by name.
hosts=
for name; do
    host=$(getent hosts "$name" | awk '{ print $1; exit }')
    test -n "$host" || { echo "$name has no address"; exit 1; }
    hosts="$hosts $host"
done
first=${hosts# }
first=${first%% *}

if redis-cli -h "$first" -p "$PORT" cluster info | grep -q cluster_slots_assigned:16384; then
    for host in $hosts; do
        redis-cli -h "$first" -p "$PORT" cluster meet "$host" "$PORT"
    done
else
    redis-cli --cluster create $(printf "%s:$PORT " $hosts) --cluster-replicas 1 --cluster-yes
fi
for try in $(seq 60); do
    redis-cli -h "$first" -p "$PORT" cluster info | grep -q cluster_state:ok && exit 0
    sleep 0.5
done
echo "the nodes do not agree"
exit 1
