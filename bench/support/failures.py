"""Fourteen programs that fail, as trainings do: each with the words that name its cause.

They are ours.  NVIDIA's Restart Agent (nvidia-resiliency-ext, 2026) has been tried with fourteen scripted
failures of these kinds; their scripts are not published.
"""

from typing import Final

STEPS: Final = "for step in range(1, 31): print(f'iteration {step}/1000 | lm loss: 2.5', flush=True)\n"

FAILURES: Final = {
    "import": ("import megatron_extension\n", "ModuleNotFoundError: No module named 'megatron_extension'"),
    "file": ("open('/data/tokens.bin')\n", "FileNotFoundError"),
    "config": ("{'model': {}}['optimizer']\n", "KeyError: 'optimizer'"),
    "arguments": (
        "import argparse, sys\nsys.argv += ['--lr2', '3']\nargparse.ArgumentParser().parse_args()\n",
        "the program refuses its arguments",
    ),
    "permission": ("raise PermissionError(13, 'Permission denied', '/checkpoints')\n", "PermissionError"),
    "type": ("len(3)\n", "TypeError: object of type 'int' has no len()"),
    "killed": (f"{STEPS}import os\nos.kill(os.getpid(), 9)\n", "killed"),
    "device-memory": (
        (
            f"{STEPS}class OutOfMemoryError(RuntimeError): __module__ = 'torch'\n"
            "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB')\n"
        ),
        "CUDA out of memory",
    ),
    "disk": (
        f"{STEPS}raise OSError(28, 'No space left on device', '/checkpoints/iter_30.pt')\n",
        "No space left on device",
    ),
    "ecc": (
        (
            f"{STEPS}import sys\n"
            "sys.stderr.write('CUDA error: uncorrectable ECC error encountered\\n')\nsys.exit(1)\n"
        ),
        "a device has failed",
    ),
    "rank": (
        (
            f"{STEPS}import sys, traceback\n"
            "try: raise ValueError('sequence of 4097 tokens, at most 4096')\n"
            "except ValueError:\n"
            "    for line in traceback.format_exc().splitlines(): sys.stderr.write(f'[rank3]: {line}\\n')\n"
            "sys.exit(1)\n"
        ),
        "ValueError: sequence of 4097 tokens",
    ),
    "non-finite": (
        f"{STEPS}raise FloatingPointError('loss is NaN at iteration 30')\n",
        "FloatingPointError: loss is NaN",
    ),
    "shapes": (
        f"{STEPS}raise RuntimeError('mat1 and mat2 shapes cannot be multiplied (8x512 and 1024x512)')\n",
        "RuntimeError: mat1 and mat2 shapes",
    ),
    "data": (f"{STEPS}b'\\xff'.decode()\n", "UnicodeDecodeError"),
}
"""The text of each program, and what its end must name."""
