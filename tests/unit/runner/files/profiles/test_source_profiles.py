"""The profiles of the source projects hold the values that their documents name, before and after."""

import pytest

from jobs.contract import Profile, profiles_dir
from runner.files.profiles.load import ProfileChoice, resolve_choice

PAIRS: dict[str, dict[str, tuple[object, object]]] = {
    "mobileposer": {
        "stream_buffer": (1, 1000),
        "micro_batch": (64, 512),
        "loader_workers": (2, 8),
        "loader_prefetch": (4, 2),
        "loader_persistent": (False, True),
        "placement": ("host", "pinned"),
        "allocator": ("default", "expandable_segments"),
        "anomaly_detection": (True, True),
        "streaming": (True, True),
    },
    "gogooku3": {
        "precision": ("fp16", "bf16"),
        "tf32_matmul": (False, True),
        "tf32_cudnn": (False, True),
        "cudnn_benchmark": (False, True),
        "compile": ("default", "max-autotune"),
        "loader_workers": (16, 8),
        "loader_prefetch": (8, 4),
        "graph_cache": ("off", "memory"),
    },
    "gogo2": {
        "placement": ("host", "device"),
        "non_blocking": (False, True),
        "transfer": ("always", "needed"),
        "clone_batches": (True, False),
        "memory_log": ("off", "epoch"),
        "precision": ("fp16", "fp16"),
    },
    "lmol": {
        "precision": ("fp32", "bf16"),
        "tf32_matmul": (False, True),
        "tf32_cudnn": (False, True),
        "cudnn_benchmark": (False, True),
        "loader_workers": (0, 4),
        "loader_persistent": (False, True),
        "placement": ("host", "pinned"),
        "non_blocking": (False, True),
        "memory_log": ("off", "interval"),
        "memory_log_every": (100, 100),
        "memory_cleanup_every": (None, 100),
        "dry_run": (False, True),
        "activation_checkpointing": (True, True),
    },
    "agi2": {
        "precision": ("fp32", "fp16"),
        "attention": ("rebuilt_mask", "cached_mask"),
        "loader_workers": (0, 4),
        "loader_persistent": (False, True),
        "placement": ("host", "pinned"),
        "non_blocking": (False, True),
        "memory_log": ("interval", "off"),
    },
}
"""For each switch of a document: its value before and after the change."""

CARDS: dict[str, dict[str, object]] = {
    "cuda": {
        "precision": "auto",
        "tf32_matmul": True,
        "tf32_cudnn": True,
        "cudnn_benchmark": True,
        "placement": "pinned",
        "non_blocking": True,
    },
    "cuda-ampere": {
        "precision": "bf16",
        "tf32_matmul": True,
        "tf32_cudnn": True,
        "cudnn_benchmark": True,
        "compile": "default",
        "loader_workers": 4,
    },
    "cuda-24gb": {
        "precision": "auto",
        "micro_batch": "auto",
        "activation_checkpointing": True,
    },
}
"""What the documents recommend for a kind of card."""


def profile(name: str) -> Profile:
    return resolve_choice(ProfileChoice(extends=name), profiles_dir(), "cpu")


@pytest.mark.parametrize("project", PAIRS)
def test_a_project_has_the_values_of_its_document_before_and_after(project: str) -> None:
    before, after = profile(f"{project}-before"), profile(f"{project}-after")
    assert {name: (getattr(before, name), getattr(after, name)) for name in PAIRS[project]} == PAIRS[project]


@pytest.mark.parametrize("project", PAIRS)
def test_a_document_changes_nothing_but_what_it_names(project: str) -> None:
    before, after = (profile(f"{project}-{when}").model_dump() for when in ("before", "after"))
    changed = {name for name in before if before[name] != after[name]} - {"name"}
    assert changed == {name for name, (then, now) in PAIRS[project].items() if then != now}


@pytest.mark.parametrize("name", CARDS)
def test_the_profile_of_a_card_has_what_the_documents_recommend_for_it(name: str) -> None:
    found = profile(name)
    assert {switch: getattr(found, switch) for switch in CARDS[name]} == CARDS[name]
