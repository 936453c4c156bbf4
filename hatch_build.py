"""Build hook: wheels and source distributions hold the libraries of the dashboard, which git lacks."""

import os
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VENDOR = Path("runner/dashboard/static/vendor")
FILES = ("uPlot.LICENSE", "uPlot.iife.min.js", "uPlot.min.css")


def missing(root: Path) -> list[str]:
    """Return the files that a build of this tree lacks."""
    return [name for name in FILES if not (root / VENDOR / name).is_file()]


class VendoredAssets(BuildHookInterface[Any]):
    """Fetches the files with npm where they are missing, and refuses a build without them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  hatchling's
        root = Path(self.root)
        if version == "editable" or os.environ.get("RUNNER_NO_ASSETS") == "1" or not missing(root):
            return
        subprocess.run([root / "scripts" / "dashboard-assets"], check=False)
        if lacking := missing(root):
            raise RuntimeError(
                f"{VENDOR}: {', '.join(lacking)} missing: install npm, which fetches them, or set"
                " RUNNER_NO_ASSETS=1 for a dashboard whose curves do not zoom"
            )
