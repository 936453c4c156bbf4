"""A policy: the path of its file is the entry point."""

from pathlib import Path
from typing import Final

THREE_TRIES: Final = Path(__file__).with_name("three-tries.yaml")
