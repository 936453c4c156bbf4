"""The lines of a job's account."""

from runner.client.account_text import time_text, used_text
from runner.client.types import AccountResponse

ACCOUNT: AccountResponse = {
    "job": "1",
    "asked": {"memory_bytes": 64 * 1024**3, "cpus": 16.0, "gpus": 1},
    "used": {
        "memory_bytes": {"peak": 9.1 * 1024**3, "mean": 8 * 1024**3},
        "cpus": {"peak": 3.2, "mean": 2.5},
        "devices": {"device 0 util": {"peak": 98.0, "mean": 61.5}, "device 0 memory": None},
        "disk_read_per_s": {"peak": 3 * 1024**2, "mean": 1.0},
        "network_sent_per_s": {"peak": 0.0, "mean": 0.0},
        "energy_wh": 1250.0,
    },
    "time": {
        "work_s": 9000.0, "waiting_s": 600.0, "starting_s": 12.5, "saving_s": 60.0, "lost_s": 5.0,
        "total_s": 9677.5, "goodput": 0.93,
    },
    "advice": ["asked 64 GiB, never above 9.1 GiB: resources.memory: 12GiB"],
}  # fmt: skip


def test_the_account_tells_where_the_time_went_and_what_was_used() -> None:
    assert time_text(ACCOUNT) == "93 % work of 2h41m; waiting 10m, starting 12s, saving 1m, lost 5s"
    assert used_text(ACCOUNT) == (
        "memory 9.1 GiB of 64 GiB, 8 GiB on average; CPUs 3.2 of 16, 2.5 on average; "
        "device 0 util 98 at most, 61.5 on average; disks read 3 MiB/s at most; energy 1250 Wh; "
        "asked 64 GiB, never above 9.1 GiB: resources.memory: 12GiB"
    )
    unknown: AccountResponse = {
        **ACCOUNT,
        "used": {"memory_bytes": None, "cpus": None, "devices": {}},
        "advice": [],
    }
    assert used_text(unknown) == "energy unknown"
    kept: AccountResponse = {**ACCOUNT, "time": {**ACCOUNT["time"], "lost_s": None}}
    assert time_text(kept).endswith("saving 1m, lost unknown")
    assert time_text(None) == used_text(None) == ""
