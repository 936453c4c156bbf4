"""Writes the seccomp profiles that the runner ships, from the list of system calls below.

They allow what Docker's documentation says that its default profile allows without capabilities
(https://docs.docker.com/engine/security/seccomp/), except io_uring and sockets of the family AF_VSOCK.  The
variant ``numa`` also allows the NUMA calls, which some programs for ROCm make.
"""

import json
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[1] / "runner" / "files" / "settings" / "seccomp"

FILES: Final = """
    access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 faccessat
    faccessat2 fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32
    fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64
    fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futimesat getcwd getdents getdents64
    getxattr inotify_add_watch inotify_init inotify_init1 inotify_rm_watch ioctl lchown lchown32
    lgetxattr link linkat listxattr llistxattr _llseek lremovexattr lseek lsetxattr lstat lstat64 mkdir
    mkdirat mknod mknodat name_to_handle_at newfstatat open openat openat2 pipe pipe2 pread64 preadv
    preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename
    renameat renameat2 rmdir sendfile sendfile64 setxattr splice stat stat64 statfs statfs64 statx
    symlink symlinkat sync sync_file_range syncfs tee truncate truncate64 umask unlink unlinkat utime
    utimensat utimensat_time64 utimes vmsplice write writev landlock_add_rule landlock_create_ruleset
    landlock_restrict_self
"""
MEMORY: Final = """
    brk madvise membarrier memfd_create memfd_secret mincore mlock mlock2 mlockall mmap mmap2 mprotect
    mremap msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_madvise
    process_mrelease remap_file_pages cachestat map_shadow_stack
"""
PROCESSES: Final = """
    alarm arch_prctl capget capset execve execveat exit exit_group fork futex futex_requeue futex_time64
    futex_wait futex_waitv futex_wake getcpu getegid getegid32 geteuid geteuid32 getgid getgid32
    getgroups getgroups32 getitimer getpgid getpgrp getpid getppid getpriority getrandom getresgid
    getresgid32 getresuid getresuid32 getrlimit get_robust_list getrusage getsid get_thread_area gettid
    getuid getuid32 ioprio_get ioprio_set kill modify_ldt pause pidfd_getfd pidfd_open pidfd_send_signal
    prctl prlimit64 process_vm_readv process_vm_writev ptrace restart_syscall rseq rt_sigaction
    rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_getaffinity sched_getattr sched_getparam
    sched_get_priority_max sched_get_priority_min sched_getscheduler sched_rr_get_interval
    sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam sched_setscheduler
    sched_yield seccomp setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32
    setitimer setpgid setpriority setregid setregid32 setresgid setresgid32 setresuid setresuid32
    setreuid setreuid32 setrlimit set_robust_list setsid set_thread_area set_tid_address setuid setuid32
    sigaltstack signalfd signalfd4 sigprocmask sigreturn sysinfo tgkill time times tkill ugetrlimit
    uname vfork wait4 waitid waitpid
"""
WAITING: Final = """
    adjtimex clock_adjtime clock_adjtime64 clock_getres clock_getres_time64 clock_gettime
    clock_gettime64 clock_nanosleep clock_nanosleep_time64 epoll_create epoll_create1 epoll_ctl
    epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 gettimeofday
    io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit nanosleep
    _newselect poll ppoll ppoll_time64 pselect6 pselect6_time64 select timer_create timer_delete
    timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create
    timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64
"""
MESSAGES: Final = """
    accept accept4 bind connect getpeername getsockname getsockopt ipc listen mq_getsetattr mq_notify
    mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink msgctl
    msgget msgrcv msgsnd recv recvfrom recvmmsg recvmmsg_time64 recvmsg semctl semget semop semtimedop
    semtimedop_time64 send sendmmsg sendmsg sendto setsockopt shmat shmctl shmdt shmget shutdown
    socketcall socketpair
"""
NUMA: Final = "get_mempolicy mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node"

NAMESPACES: Final = 0x7E020000
"""``CLONE_NEW*``: flags of clone(2) that make namespaces."""

PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
AF_VSOCK: Final = 40
ENOSYS: Final = 38


def profile(*, numa: bool) -> dict[str, Any]:
    """Return one profile in the engine's format."""
    names = " ".join((FILES, MEMORY, PROCESSES, WAITING, MESSAGES, NUMA if numa else "")).split()
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
        ],
        "syscalls": [
            {"names": sorted(set(names)), "action": "SCMP_ACT_ALLOW"},
            *(_allowed("personality", "SCMP_CMP_EQ", value) for value in PERSONALITIES),
            _allowed("socket", "SCMP_CMP_NE", AF_VSOCK),
            _allowed("clone", "SCMP_CMP_MASKED_EQ", NAMESPACES),
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},  # its flags are in memory
        ],
    }


def _allowed(name: str, comparison: str, value: int) -> dict[str, Any]:
    condition = {"index": 0, "value": value, "valueTwo": 0, "op": comparison}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [condition]}


def main() -> None:
    """Write the profiles."""
    FOLDER.mkdir(exist_ok=True)
    for name, numa in (("runner", False), ("runner-numa", True)):
        (FOLDER / f"{name}.json").write_text(json.dumps(profile(numa=numa), indent=1) + "\n")


if __name__ == "__main__":
    main()
