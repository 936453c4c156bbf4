import gzip
import io

import numpy as np

from runner.adapters.datasets import convert as forms
from runner.files.datasets import NAMES
from tests.unit.runner.adapters.datasets.test_npy import saved

OHLCV = "Date,Open,High,Low,Close,Adj Close,Volume\n1/4/1999,1.5,2,1,1.25,1.25,877000000\n"
SDF = """ethanol
  drawing

M  END
>  <NAME>  (1)
ethanol

>  <SOL>  (1)
1.1

>  <SOL_classification>  (1)
(C) high

>  <{tag}>  (1)
CCO

$$$$
"""


def test_every_data_set_has_a_form() -> None:
    assert set(forms.CONVERSIONS) == set(NAMES)


def test_recordings_become_float32_arrays_and_an_index() -> None:
    recordings = [np.asfortranarray(np.arange(12.0).reshape(2, 6)), np.ones((3, 6))]
    raw = saved({
        "X": recordings, "y": np.array([1, 0]), "subject": np.array([7, 3]), "y_labels": ["PEN", "ROW"],
    })  # fmt: skip
    files = forms.watch({"watch.npy": raw})
    assert files["index.csv"].decode().splitlines() == [
        "file,subject,activity,samples",
        "recordings/000.npy,7,ROW,2",
        "recordings/001.npy,3,PEN,3",
    ]
    found = np.load(io.BytesIO(files["recordings/000.npy"]))
    assert found.dtype == np.float32
    assert found.tolist() == recordings[0].tolist()


def test_prices_are_unpacked_and_keep_every_digit() -> None:
    packed = gzip.compress(b"Date,AAPL,XOM\n1990-01-02,0.2640,4.125\n")
    files = forms.sp500_stocks({"a/sp500.csv.gz": packed})
    assert files == {"prices.csv": b"date,AAPL,XOM\n1990-01-02,0.2640,4.125\n"}


def test_index_tables_get_sortable_dates_and_lose_the_adjusted_close() -> None:
    files = forms.index_ohlcv({"arch/data/nasdaq/nasdaq.csv.gz": gzip.compress(OHLCV.encode())})
    assert files == {"nasdaq.csv": b"date,open,high,low,close,volume\n1999-01-04,1.5,2,1,1.25,877000000\n"}


def test_molecules_of_both_files_become_one_table() -> None:
    members = {
        "d/solubility.train.sdf": SDF.format(tag="smiles").encode(),
        "d/solubility.test.sdf": SDF.format(tag="SMILES").encode(),
    }
    assert forms.solubility(members)["molecules.csv"].decode().splitlines() == [
        "smiles,logs,class,split", "CCO,1.1,high,train", "CCO,1.1,high,test",
    ]  # fmt: skip
