#!/bin/sh
# Keeps one attempt on a node of Slurm: batch.sh ATTEMPT PLACE
#
# Slurm runs it as the job's user.  ATTEMPT is the attempt's own directory, PLACE what the daemon has prepared:
# PLACE/program   a shell script that becomes the program
# PLACE/stop      the number of a signal that came before this script ran
# PLACE/signals   ../signals.sh, where the program is a plain process of this node
# It writes into ATTEMPT:
# .slurm-claim    job, restarts, node or nodes, boot id and GPUs: of all jobs and starts, only one continues here
# .slurm-exit     the exit status of the program, 128+n after signal n, 75 instead of 0 after SIGTERM; written atomically
# Slurm's signals reach this shell alone (scancel --batch), which brings them to the program.

attempt=$1
place=$2
umask 077
exec </dev/null
main=
early=
runner_stopping=

forward() {
    if [ -z "$main" ]; then
        case $1 in 10 | 12) ;; *) early="$early $1" ;; esac # SIGUSR1 and SIGUSR2 are for a program that runs
    elif [ ! -r "$place/signals" ]; then
        kill "-$1" "$main" 2>/dev/null
    else
        bring "$1" "$main" 2>/dev/null
    fi
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
    read -r number <"$place/stop"
    early="$early $number"
fi
for number in $early; do
    leave "$((128 + number))"
done

[ ! -r "$place/signals" ] || . "$place/signals"
env --default-signal=INT,QUIT /bin/sh "$place/program" &
main=$!
for signal in $early; do forward "$signal"; done
while
    wait "$main"
    status=$?
    kill -0 "$main" 2>/dev/null
do :; done
wait "$main" 2>/dev/null
last=$?
[ "$last" -eq 127 ] || status=$last
[ "$status$runner_stopping" != 0yes ] || status=75
leave "$status"
