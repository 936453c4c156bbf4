"""Draws the curve of a mail: JSON from the standard input becomes PNG on the standard output.

It is a program of its own, which needs matplotlib and nothing of the runner.
"""

import json
import sys
from importlib import import_module

INCHES = (7, 3.5)
DPI = 100


def draw(name: str, points: list[tuple[int, float]]) -> None:
    """Write a curve over its steps as PNG to the standard output."""
    figure = import_module("matplotlib.figure").Figure(figsize=INCHES, dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.plot([step for step, _ in points], [value for _, value in points])
    axes.set_xlabel("step")
    axes.set_ylabel(name, parse_math=False)  # a name is a user's: it is no formula
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(sys.stdout.buffer, format="png")


if __name__ == "__main__":
    said = json.load(sys.stdin)
    draw(said["name"], said["points"])
