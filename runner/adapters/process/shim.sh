#!/bin/sh
# Runs one attempt and records it: shim.sh DIRECTORY COMMAND [ARGUMENT...]
#
# executor.py starts it in a session of its own, so that it outlives the daemon.  It writes into DIRECTORY:
# shim, child   boot id and /proc/PID/stat, which identify a process for ever
# exit          the exit status of COMMAND, 128+n after signal n; written atomically
# DIRECTORY/environment holds shell statements that set the variables of COMMAND, which reads them from descriptor 4.
# Descriptor 3 is a pipe to the daemon.  Closing it means that the child of this shim or another is recorded.

directory=$1
shift
umask 077
ulimit -c 0
read -r boot </proc/sys/kernel/random/boot_id
read -r stat </proc/self/stat

set -C # never overwrite a file: of all shims of this attempt, only one continues here
{ printf '%s\n%s\n' "$boot" "$stat" >"$directory/shim"; } 2>/dev/null || exit 0
set +C

(
    read -r stat </proc/self/stat
    printf '%s\n%s\n' "$boot" "$stat" >"$directory/child" || exit 74
    exec setsid -- "$@" 3>&- 4<"$directory/environment"
) &
exec 3>&-
wait "$!"
status=$?
kill -s KILL -- "-$!" 2>/dev/null # processes of its group that the command left
until printf '%s\n' "$status" >"$directory/exit.part" && mv "$directory/exit.part" "$directory/exit"; do
    [ -d "$directory" ] || exit 74 # somebody has removed it, and nobody will ask
    sleep 1 # retried, so that a full disk does not lose the exit status
done
