#!/bin/sh
# Keeps one attempt: shim.sh DIRECTORY COMMAND [ARGUMENT...]
#
# Started by local_process.py in a session of its own, so that it outlives the daemon.
# shim, child   boot id and /proc/PID/stat, which name a process for ever
# exit          the status of the command, 128+n after signal n; appears in one piece
# Descriptor 3 is a pipe to the daemon: its end says "the child is on record, or another's is".

directory=$1
shift
umask 077
ulimit -c 0
read -r boot </proc/sys/kernel/random/boot_id
read -r stat </proc/self/stat

set -C # never over an existing file: of all shims of this attempt, one passes here
{ printf '%s\n%s\n' "$boot" "$stat" >"$directory/shim"; } 2>/dev/null || exit 0
set +C

(
    read -r stat </proc/self/stat
    printf '%s\n%s\n' "$boot" "$stat" >"$directory/child" || exit 74
    exec setsid -- "$@" 3>&-
) &
exec 3>&-
wait "$!"
status=$?
kill -s KILL -- "-$!" 2>/dev/null # what the command left behind in its group
until printf '%s\n' "$status" >"$directory/exit.part" && mv "$directory/exit.part" "$directory/exit"; do
    sleep 1 # a full disk must not cost the exit status
done
