"""Threads share one heap, in a process of its own: what this one has cannot be undone."""

import subprocess
import sys

PROGRAM = """
import ctypes, sys, threading
from runner.base.heap import share_one_heap

if sys.argv[1] == "shared":
    share_one_heap()
malloc = ctypes.CDLL(None).malloc
malloc.restype = ctypes.c_void_p
found, together = [], threading.Barrier(3)

def allocate():
    together.wait()
    found.append(malloc(1000) >> 26)  # heaps of threads begin at multiples of 64 MiB
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(3)]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(len(set(found)))
"""


def heaps(asked: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, asked], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_threads_that_begin_later_share_one_heap() -> None:
    assert heaps("apart") > 1
    assert heaps("shared") == 1
