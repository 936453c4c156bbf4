#!/bin/sh
# Runs the program of one of several nodes: node.sh ATTEMPT PLACE
#
# nodes.sh, on the first node, talks to it through standard input and output.  PLACE/one becomes the program,
# which is told its node, and where the processes of all nodes meet.  It writes processes that ended badly into
# ATTEMPT/.node-N.

attempt=$1
place=$2
node=$SLURM_PROCID
umask 077
exec 3<&0 4>&1 </dev/null >>"$attempt/.slurm-out" 2>&1
echo "here $node $SLURMD_NODENAME" >&4

export RUNNER_NODE="$node" RUNNER_NODES="$SLURM_NNODES" MASTER_ADDR="$SLURM_LAUNCH_NODE_IPADDR" MASTER_PORT
env --default-signal=INT,QUIT /bin/sh "$place/one" 3<&- 4>&- &
child=$!

while read -r what n; do
    case $what in
    signal) kill "-$n" "$child" ;;
    leave) [ "$node" = 0 ] || kill "$child" ;;
    esac
done <&3 4>&- &
hears=$!

lines=0
tell() {
    [ -e "$attempt/.node-$node" ] || return
    read -r up _ </proc/uptime
    seen=0
    while read -r rank code at; do
        [ $((seen += 1)) -gt "$lines" ] || continue
        lines=$seen
        echo "end $node $rank $code $((${up%.*}${up#*.} - at))" >&4
    done <"$attempt/.node-$node"
}
while kill -0 "$child" 2>/dev/null; do
    tell
    sleep 0.1
done
wait "$child"
status=$?
tell
echo "left $node $status" >&4
kill "$hears" 2>/dev/null
exit 0
