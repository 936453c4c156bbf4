#!/bin/sh
# Runs an attempt on all nodes of its job, and tells each what becomes of the others: nodes.sh ATTEMPT PLACE SRUN
#
# It runs on the first node.  srun starts node.sh once on each node.  What is to be told goes to all of them
# through srun's standard input, and comes back through its standard output, line by line:
#   signal N, leave                  to the nodes
#   here NODE NAME                   a node is there
#   end NODE RANK CODE AGE           a process has ended badly, AGE hundredths of a second ago
#   left NODE CODE                   all processes of a node have ended
# The launcher of the first node decides what the end is; it reads ATTEMPT/.ends.  Nodes that were lost are
# named in ATTEMPT/.slurm-lost.

attempt=$1
place=$2
srun=$3
umask 077
room=
for base in "${TMPDIR:-/tmp}" /var/tmp /dev/shm; do
    [ -n "$room" ] || room=$(mktemp -d "$base/runner-nodes.XXXXXX" 2>/dev/null)
done
[ -n "$room" ] || {
    echo "no directory in /tmp, /var/tmp or /dev/shm of this node can be made"
    exit 126
}
mkfifo "$room/to" "$room/from" || exit 126
exec 3<>"$room/to" 4<>"$room/from"

n=0
while [ $((n += 1)) -lt 65 ]; do
    case $n in 4 | 5 | 6 | 7 | 8 | 9 | 11 | 17 | 18 | 19 | 31 | 32 | 33) ;; 20 | 21 | 22) trap : "$n" ;; *) trap "echo signal $n >&3" "$n" ;; esac
done 2>/dev/null

# Hundredths of a second since the machine was started.
now() {
    read -r up _ </proc/uptime
    echo "${up%.*}${up#*.}"
}

# A port on which nobody listens here: beside others of this Slurm, by the number of the job.
free_port() {
    port=$((20000 + SLURM_JOB_ID % 10000))
    while grep -qi ":$(printf %04X "$port") [0-9A-F]*:0000 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null; do
        port=$((port == 29999 ? 20000 : port + 1))
    done
    echo "$port"
}

MASTER_PORT=$(free_port)
export MASTER_PORT

(
    # shellcheck disable=SC2016  words of the inner shell
    /bin/sh -c 'echo $$ >"$1/pid"; shift; exec "$@"' sh "$room" \
        "$srun" --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
        ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} --kill-on-bad-exit=0 --wait=0 --export=ALL \
        --quiet /bin/sh "$place/node" "$attempt" "$place" <"$room/to" >&4 2>>"$attempt/.slurm-out" 3>&- 4>&-
    echo "over $?" >&4
) &

status=
told=
left=0
lost() {
    node=-1
    while [ $((node += 1)) -lt "$SLURM_JOB_NUM_NODES" ]; do
        [ -e "$room/left.$node" ] || cat "$room/here.$node" 2>/dev/null
    done >"$attempt/.slurm-lost"
}
while :; do
    read -r what node a b c <&4 || continue # a signal came
    case $what in
    here) echo "$a" >"$room/here.$node" ;;
    end)
        printf 'end %s %s %s\n' "$a" "$b" "$(($(now) - c))" >>"$attempt/.ends"
        case $b in 0 | 75 | 95) ;; *) [ -n "$told" ] || echo leave >&3 && told=yes ;; esac
        ;;
    left)
        : >"$room/left.$node"
        printf 'left %s\n' "$node" >>"$attempt/.ends"
        left=$((left + 1))
        if [ "$node" = 0 ]; then
            status=$a
            [ "$status" != 95 ] || lost
            [ "$left" = "$SLURM_JOB_NUM_NODES" ] || kill "$(cat "$room/pid")" # srun kills what is left
            break
        fi
        ;;
    over)
        # The launchers are gone without a word: killed, and then this script is, too, or their nodes were lost.
        sleep 1
        echo "srun has ended with $node" >>"$attempt/.slurm-out"
        status=95
        [ "$node" != 137 ] || status=137
        break
        ;;
    esac
done
rm -rf "$room"
exit "$status"
