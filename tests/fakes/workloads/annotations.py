"""A small directory of annotations and candles, as somebody has who made them by hand with a chart."""

import json
import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

FRAMES: Final = {"1s": 1, "1m": 60, "1h": 3600, "1d": 86400}

FIRST: Final = datetime(2025, 1, 6, tzinfo=UTC)

COUNT: Final = 24

Annotation = dict[str, Any]


def annotation(number: int, candles: int = 8) -> Annotation:
    """Return an annotation; every third lacks a frame, and every fourth the order book."""
    draw = random.Random(number)  # noqa: S311 - examples, no secrets
    drift = (-1, 0, 1)[number % 3]
    at = FIRST + timedelta(hours=3 * number, seconds=30)
    frames = {f"ohlcv_{name}": _candles(drift, at, length, candles, draw) for name, length in FRAMES.items()}
    del frames[("ohlcv_1s", "ohlcv_1h", "ohlcv_1d")[number // 3 % 3] if number % 3 == 0 else "ohlcv_1m"]
    book = [[drift + draw.gauss(0, 1) for _ in range(6)] for _ in range(5)]
    entry = 3000.0
    return {
        "annotation_id": f"{number}",
        "symbol": "ETH/USDT",
        "timestamp": iso(at),
        "action": ("SELL", "HOLD", "BUY")[number % 3],
        "market_state": {
            **frames,
            "order_book": book if number % 4 else None,
            "technical": {"rsi": 50.0 + 20 * drift, "macd": drift / 2, "is_open": bool(number % 2)},
            "position": [0.0, drift + draw.random()],
        },
        "expected_outcome": {
            "direction": ("SHORT", "NEUTRAL", "LONG")[number % 3],
            "profit_loss_pct": abs(drift),
            "entry_price": entry,
            "exit_price": entry * math.exp(0.01 * drift),
            "holding_period_seconds": 1800,
        },
    }


def iso(time: datetime) -> str:
    """Return a time as annotations write it."""
    return time.isoformat().replace("+00:00", "Z")


def _candles(drift: int, at: datetime, seconds: int, count: int, draw: random.Random) -> list[list[Any]]:
    close, rows = 3000.0, []
    for number in range(count):
        begin = at - timedelta(seconds=seconds * (count - number))
        opened = close
        close *= math.exp(0.001 * (drift + draw.gauss(0, 0.3)))
        rows.append(
            [
                iso(begin),
                opened,
                max(opened, close) + 0.5,
                min(opened, close) - 0.5,
                close,
                draw.uniform(1, 9),
            ]
        )
    return rows


def minute_candles(hours: int = 3 * COUNT) -> str:
    """Return a CSV table of minutes, in waves."""
    rows = ["timestamp,open,high,low,close,volume"]
    for number in range(60 * hours):
        begin = FIRST - timedelta(hours=1) + timedelta(minutes=number)
        middle = 3000 * math.exp(0.003 * math.sin(number / 15))
        rows.append(f"{iso(begin)},{middle},{middle + 1},{middle - 1},{middle + 0.5},{1 + number % 7}")
    return "\n".join(rows) + "\n"


def write(directory: Path, number: int, content: Annotation) -> Path:
    """Write one annotation file, and return its path."""
    path = directory / f"annotation_{number:02}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1))
    return path


def annotation_directory(directory: Path) -> None:
    """Write annotations, and the candles of minutes beside them, into a directory."""
    for number in range(COUNT):
        write(directory / "test_cases", number, annotation(number))
    table = directory / "candles" / "ETH-USDT" / "1m.csv"
    table.parent.mkdir(parents=True)
    table.write_text(minute_candles())
