"""A folder of small wheels, which takes the place of an index of packages."""

import hashlib
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path


def make_wheel(  # noqa: PLR0913  (one value per part of a wheel)
    folder: Path,
    name: str,
    version: str,
    *,
    requires: tuple[str, ...] = (),
    scripts: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel with one module that has ``VERSION``, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    entries = {
        f"{module}/__init__.py": f"VERSION = {version!r}\n\n\ndef main():\n    print(VERSION)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n",
        **(files or {}),
    }
    if scripts:
        lines = "".join(f"{script} = {target}\n" for script, target in scripts.items())
        entries[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}"
    record = "".join(f"{path},sha256={_hash(body)},{len(body)}\n" for path, body in entries.items())
    entries[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    path = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inner, body in entries.items():
            wheel.writestr(zipfile.ZipInfo(inner), body)
    return path


def _hash(body: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(body.encode()).digest()).rstrip(b"=").decode()
