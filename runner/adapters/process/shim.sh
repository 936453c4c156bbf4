#!/bin/sh
# Runs one attempt and records it: shim.sh DIRECTORY OWNER LEFT COMMAND [ARGUMENT...]
#
# executor.py starts it in a session of its own, so that it outlives the daemon, and as the reaper of all processes
# below it.  OWNER is empty, or the options of setpriv for the rights with which COMMAND gets signals.  With them it writes
# into LEFT the names of the processes that COMMAND has left running.  It writes into DIRECTORY:
# shim, child   boot id and /proc/PID/stat, which identify a process for ever
# exit          the exit status of COMMAND, 128+n after signal n, 75 instead of 0 after SIGTERM; written atomically, when nothing of COMMAND is left
# DIRECTORY/environment holds shell statements that set the variables of COMMAND, which reads them from descriptor 4.
# Descriptor 3 is a pipe to the daemon.  Closing it means that the child of this shim or another is recorded.
# The signals that it gets are those of COMMAND (../signals.sh).

directory=$1
owner=$2
file_of_left=$3
shift 3
umask 077
ulimit -c 0
signals=$(cat "${0%/*}/../signals.sh") || exit 74
main=
early=
stopping=

# As the owner: the number of a process may meanwhile be that of somebody else's.
as_owner() {
    # shellcheck disable=SC2016,SC2086  words of the inner shell; words
    signals=$signals setpriv $owner -- /bin/sh -c 'eval "$signals"; "$@"' sh "$@" 2>/dev/null
}

heed() {
    if [ -z "$main" ]; then
        early="$early $1"
    elif [ "$1" != 15 ]; then
        as_owner deliver "$1" "$main"
    elif [ -z "$stopping" ]; then
        stopping=yes
        as_owner stop "$main" &
    fi
}

n=0
while [ $((n += 1)) -lt 65 ]; do
    # shellcheck disable=SC2064  the number now
    case $n in 4 | 5 | 6 | 7 | 8 | 9 | 11 | 17 | 19 | 31 | 32 | 33) ;; *) trap "heed $n" "$n" ;; esac
done 2>/dev/null

read -r boot </proc/sys/kernel/random/boot_id
read -r stat </proc/self/stat

set -C # never overwrite a file: of all shims of this attempt, only one continues here
{ printf '%s\n%s\n' "$boot" "$stat" >"$directory/shim"; } 2>/dev/null || exit 0
set +C
printf '   \n' >"$directory/exit.part" # room for the exit status, on a disk that may be full then

(
    read -r stat </proc/self/stat
    printf '%s\n%s\n' "$boot" "$stat" >"$directory/child" || exit 74
    exec setsid -- "$@" 3>&- 4<"$directory/environment"
) &
main=$!
exec 3>&-
for signal in $early; do heed "$signal"; done
while
    wait "$main"
    status=$?
    kill -0 "$main" 2>/dev/null
do :; done
wait "$main" 2>/dev/null
last=$?
[ "$last" -eq 127 ] || status=$last
[ "$status$stopping" != 0yes ] || status=75

# What is left ends, whatever session it is in: an orphan is a child of this shim, also that of a process which ends
# between two looks.  Mostly it is what brought the stop, which waits for its next look; it takes a moment for each
# generation.
eval "$signals"
names=
if [ -z "$stopping" ]; then
    find_left $$ '' 2>/dev/null
    names=$left
fi
looks=0
while
    left=
    find_children $$
    before=$children
    for pid in $before; do
        if look "$pid" 15; then kill -s KILL "$pid" && left=yes; fi
    done
    find_children $$
    [ -n "$left" ] || [ "$children" != "$before" ]
do if [ $((looks += 1)) -lt 20 ]; then sleep 0.01; else sleep 0.1; fi; done 2>/dev/null # one may be gone at a look
[ -z "$names" ] || as_owner keep_left "$file_of_left" "$names"
until printf '%-3s\n' "$status" 1<>"$directory/exit.part" && mv "$directory/exit.part" "$directory/exit"; do
    [ -d "$directory" ] || exit 74 # somebody has removed it, and nobody will ask
    sleep 1 # retried, so that a file system which copies what is written again does not lose the exit status
done
