#!/bin/sh
# Keeps one attempt on a node of Slurm: batch.sh ATTEMPT PLACE
#
# Slurm runs it as the job's user.  ATTEMPT is the attempt's own directory, PLACE what the daemon has prepared:
# PLACE/program   a shell script that becomes the program
# PLACE/stop      the number of a signal that came before this script ran
# It writes into ATTEMPT:
# .slurm-claim    job, restarts, node or nodes, boot id and GPUs: of all jobs and starts, only one continues here
# .slurm-exit     the exit status of the program, 128+n after signal n; written atomically
# Slurm's signals reach this shell alone (scancel --batch), which forwards them to the program.

attempt=$1
place=$2
umask 077
exec </dev/null
child=
early=

forward() {
    if [ -n "$child" ]; then kill "-$1" "$child" 2>/dev/null; else early=$1; fi
}

leave() {
    until printf '%s\n' "$1" >"$attempt/.slurm-exit.part" && mv "$attempt/.slurm-exit.part" "$attempt/.slurm-exit"; do
        sleep 1 # retried, so that a full disk does not lose the exit status
    done
    exit "$1"
}

# Slurm suspends and resumes every process itself: a forwarded SIGTSTP would stop the program once more.
n=0
while [ $((n += 1)) -lt 65 ]; do
    case $n in 4 | 5 | 6 | 7 | 8 | 9 | 11 | 17 | 18 | 19 | 31 | 32 | 33) ;; 20 | 21 | 22) trap : "$n" ;; *) trap "forward $n" "$n" ;; esac
done 2>/dev/null

nodes=$SLURMD_NODENAME
[ "${SLURM_JOB_NUM_NODES:-1}" = 1 ] || nodes=$SLURM_JOB_NODELIST
read -r boot </proc/sys/kernel/random/boot_id
set -C # never overwrite a file
{ printf '%s %s %s %s %s\n' "$SLURM_JOB_ID" "${SLURM_RESTART_COUNT:-0}" "$nodes" "$boot" "${SLURM_JOB_GPUS:-}" >"$attempt/.slurm-claim"; } 2>/dev/null || {
    echo "this attempt was started before; nothing is run"
    exit 79
}
set +C

if [ -r "$place/stop" ]; then
    read -r early <"$place/stop"
fi
[ -z "$early" ] || leave "$((128 + early))"

env --default-signal=INT,QUIT /bin/sh "$place/program" &
child=$!
[ -z "$early" ] || kill "-$early" "$child" 2>/dev/null
while
    wait "$child"
    status=$?
    kill -0 "$child" 2>/dev/null
do :; done
wait "$child" 2>/dev/null
last=$?
[ "$last" -eq 127 ] || status=$last
leave "$status"
