# Brings a signal to the program of an attempt, past the shells and launchers that only wait for it.
#
#   deliver N PID   signal N, once
#   stop PID        SIGTERM, until the process PID has ended; each process gets it at most once
#   bring N PID     signal N by one of these, from a trap
#
# PID is the first process of the attempt.  It is the program itself, or it waits for the program: "bash train.sh",
# "python train.py | tee log", "timeout", "accelerate launch".  /proc says which processes have a handler of the signal.
# Three lists are made of those at and below PID:
#
# listeners   have a handler, and whatever is below them is their own business: a trainer whose loader processes must
#             live while it saves; torchrun, which passes the signal on.
# attended    shells with a handler that wait for a foreground command, or have waited for one since the stop began: a
#             shell runs its handler only when that has ended.  With them goes such a command, as at a terminal.
# others      the rest, which the signal would only end: tee, whose end would break the output of a trainer that saves.
#
# The signal goes to the first of these lists that is not empty.  At a stop, a later list follows 5 seconds
# after the last process of the earlier ones has ended, in which a script may finish.  A listener that begins meanwhile
# gets the signal, too.
#
# Any POSIX shell runs this, in the image of a job and with its owner's rights.  Its caller's variables are none of
# those below.

# Read what the kernel says of process $1: its $name, the call of the kernel in which it is $asleep, whether it has a handler of
# signal $2 or asks for signals ($listening), and whether it ignores SIGQUIT ($quiet).
look() {
    name='' state=Z caught=0 ignored=0 blocked=0
    [ -r "/proc/$1/status" ] || return
    while read -r key value _; do
        case $key in
        Name:) name=$value ;;
        State:) state=$value ;;
        SigBlk:) blocked=${value#????????} ;; # signals 1 to 32
        SigIgn:) ignored=${value#????????} ;;
        SigCgt:) caught=${value#????????} ;;
        esac
    done <"/proc/$1/status"
    [ "$state" != Z ] || return
    ! is_shell || blocked=0 # while it forks, as its child does until that has become a program
    listening=$(((0x$caught | 0x$blocked) >> ($2 - 1) & 1))
    quiet=$((0x$ignored >> 2 & 1))
    asleep=
    [ ! -r "/proc/$1/wchan" ] || read -r asleep <"/proc/$1/wchan"
    case $asleep in do_sigtimedwait*) listening=1 ;; esac
}

# Set $children to those of process $1.
find_children() {
    children=
    for file in "/proc/$1/task"/*/children; do
        line=
        [ ! -r "$file" ] || read -r line <"$file"
        children="$children${line:+ $line}"
    done
}

# Set $left to the names of the processes at and below the children of process $1, each on a line, but for its child $2
# with what is below that.  What ends by itself after the program has a moment for it.
find_left() {
    left=
    find_children "$1"
    case $children in '' | " $2") return ;; esac
    sleep 0.2 || sleep 1
    find_children "$1"
    shell=$2
    # shellcheck disable=SC2086  words
    set -- $children
    while [ $# -gt 0 ]; do
        pid=$1
        shift
        [ "$pid" != "$shell" ] && look "$pid" 15 || continue
        left="$left$name
"
        find_children "$pid"
        # shellcheck disable=SC2086  words
        set -- $children "$@"
    done
}

# Write the names $2 into the file $1.
keep_left() {
    rm -f "$1" && printf %s "$2" >"$1"
}

is_shell() {
    case $name in sh | ash | bash | dash | ksh | zsh | busybox) return 0 ;; *) return 1 ;; esac
}

# Return whether process $pid, that of the last look and without a handler, only waits for its children, in any of its threads.
waits() {
    ! is_shell || return 0
    for file in "/proc/$pid/task"/*/wchan; do
        line=
        [ ! -r "$file" ] || read -r line <"$file"
        case $line in do_wait*) return 0 ;; esac
    done
    return 1
}

# Return whether process $1 holds a pipe into which process $2 prints, and which it does not print into itself.
reads() {
    for end in 1 2; do
        pipe=/proc/$2/fd/$end
        [ ! "/proc/$1/fd/1" -ef "$pipe" ] && [ ! "/proc/$1/fd/2" -ef "$pipe" ] || continue
        for file in "/proc/$1/fd"/*; do
            [ ! "$file" -ef "$pipe" ] || return 0
        done
    done
    return 1
}

# Set $below to those of $children that are programs of their own, if a process without a handler sleeps until it looks
# at them again, or reads what they print: from one pipe, or from several at a time.  Set $awake if it does not sleep now.
# Forked loader processes, and those of Python's multiprocessing, are parts of it.
find_printers() {
    case $asleep in
    *pipe_read* | pipe_wait* | *nanosleep*) several=0 ;;
    *poll*) several=1 ;;
    '' | 0) several=now ;;
    *) return ;;
    esac
    for child in $children; do
        words=
        [ ! -r "/proc/$child/cmdline" ] || read -r words <"/proc/$child/cmdline"
        case $words in *multiprocessing*) continue ;; esac
        [ "$several" != 1 ] || reads "$pid" "$child" || continue
        has_begun "$child" || continue
        case $several in now) awake=yes ;; *) below="$below $child$mark" ;; esac
    done
}

# Set $below to those of $children that a shell waits for; it starts those in the background with SIGQUIT ignored.
find_foreground() {
    was_quiet=$quiet
    for child in $children; do
        if look "$child" "$1" && { [ "$quiet" = 0 ] || [ "$was_quiet" = 1 ]; }; then below="$below $child/"; fi
    done
}

# Return whether process $pid is a shell that has waited for a foreground command since the stop began.
has_waited() {
    case $waited in *" $pid "*) return 0 ;; *) return 1 ;; esac
}

# Return whether process $1 has become a program; until then it may have the handlers of the shell that forked it.
has_begun() {
    line=
    [ ! -r "/proc/$1/stat" ] || read -r line <"/proc/$1/stat"
    # shellcheck disable=SC2086  words
    set -- ${line##*) }
    [ "$((${7:-0} & 64))" = 0 ] # PF_FORKNOEXEC
}

# Make the three lists for signal $1 and the processes at and below $2; "PID/" is one that a shell attends to.
# They are not $settled while they have a process that a shell has just forked, which may be about to become a program:
# that would not know of a signal that came before.  One that is there at the next survey, too, is a part of a script.
# Nor are they, for some surveys, if nobody listens and a process with children is awake: it may be about to look at them.
# Nor are they if a signal was queued meanwhile: its trap within this one has spoiled the status of a command.
survey() {
    number=$1 queued=$runner_queue
    shift
    listeners='' attended='' others='' awake='' settled=yes
    while [ $# -gt 0 ]; do
        pid=${1%/} mark=${1#"${1%/}"}
        shift
        look "$pid" "$number" || continue
        find_children "$pid"
        below=
        case $name in
        timeout | make) # they pass SIGTERM on, but to a whole group, or to a shell
            for child in $children; do below="$below $child$mark"; done
            listening=2
            ;;
        parallel) # starts no more, and does not tell those that run
            for child in $children; do below="$below $child$mark"; done
            listeners="$listeners $pid" listening=2
            ;;
        esac
        if [ "$listening" = 1 ]; then
            if is_shell && [ -z "$children" ] && ! has_begun "$pid"; then
                case $forked in *" $pid "*) ;; *) forked="$forked$pid " settled= ;; esac
            fi
            case $told in
            *" $pid "*) ;; # what a shell starts now, its handler starts
            *) ! is_shell || find_foreground "$number" ;;
            esac
            if [ -n "$below" ] || has_waited; then
                attended="$attended $pid" waited="$waited$pid "
            else
                listeners="$listeners $pid"
            fi
        else
            if [ -n "$mark" ]; then attended="$attended $pid"; else others="$others $pid"; fi
            if [ "$listening" = 0 ] && waits; then
                for child in $children; do below="$below $child$mark"; done
            elif [ "$listening" = 0 ]; then
                find_printers
            fi
        fi
        # shellcheck disable=SC2086  words
        set -- $below "$@"
    done
    case $listeners$awake in
    yes) [ "$((looks += 1))" -ge 10 ] || settled= ;;
    esac
    case $runner_queue in "$queued") ;; *) settled= ;; esac
}

# Send signal $1 to the other arguments, unless they have been told before.  A program that still is the runner's, on its
# way to the rights of its owner, is told later.  Who is told is noted before: a trap may spoil the status of what tells.
tell() {
    number=$1
    shift
    for pid in "$@"; do
        case $told in *" $pid "*) continue ;; esac
        kill -0 "$pid" || continue
        told="$told$pid "
        kill "-$number" "$pid"
    done
}

deliver() {
    told=' ' waited=' ' forked=' ' looks=0
    until has_begun "$2"; do sleep 0.1; done
    if [ "$1" -gt 32 ]; then
        kill "-$1" "$2"
        return
    fi
    until survey "$1" "$2"; [ -n "$settled" ]; do sleep 0.1; done
    # shellcheck disable=SC2086  words
    tell "$1" ${listeners:-${attended:-$others}}
}

# Begin a stop of process $1: tell whoever is to hear it first.  Nothing is started for this, which may fail.
begin_stop() {
    told=' ' waited=' ' forked=' ' looks=0 heard=
    go_on_stopping "$1"
}

# shellcheck disable=SC2086  words
go_on_stopping() {
    has_begun "$1" || return 0
    survey 15 "$1"
    case $settled in '') return 0 ;; esac
    read -r now _ </proc/uptime
    now=${now%.*}
    if [ -n "$listeners" ]; then
        heard=$now
        tell 15 $listeners
    elif [ -z "$heard" ] || [ $((now - heard)) -ge 5 ]; then
        tell 15 ${attended:-$others}
    fi
}

end_stop() {
    while look "$1" 15; do
        sleep 0.2 2>/dev/null || sleep 1 || return
        go_on_stopping "$1"
    done
}

stop() {
    begin_stop "$1"
    end_stop "$1"
}

runner_queue=
runner_busy=
runner_stopping=

# Bring signal $1 to the program $2, once there is one, and after those that are being brought: a trap may come in the
# middle of another.  Nothing is started for this but what goes on with a stop, for it may fail.
bring() {
    runner_queue="$runner_queue$1 "
    while [ -n "$2" ] && [ -z "$runner_busy" ] && [ -n "$runner_queue" ]; do
        runner_busy=yes signal=${runner_queue%% *} runner_queue=${runner_queue#* }
        case $runner_stopping$signal in
        '' | yes | yes15) ;;
        15)
            # A second one within this trap would spoil the status of its commands: who is told would count as not told.
            trap '' 15
            runner_stopping=yes
            begin_stop "$2"
            command eval 'end_stop "$2" &'
            ;;
        *) deliver "$signal" "$2" ;;
        esac
        runner_busy=
    done
}

# Bring all signals that a program may handle.  Nothing before the start of a program sets a variable that may be its own.
listen() {
    set -- 1
    while [ "$1" -lt 65 ]; do
        # shellcheck disable=SC2064  the number now
        case $1 in 4 | 5 | 6 | 7 | 8 | 9 | 11 | 17 | 19 | 31 | 32 | 33) ;; *) trap "bring $1 \"\$runner_main\"" "$1" ;; esac
        set -- "$(($1 + 1))"
    done 2>/dev/null
}
