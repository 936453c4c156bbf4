"""A bidirectional transformer encoder, used for molecules and for candles.

Shape legend: B sequences, T positions, Q query positions, C width, H heads, D width of a head.
"""
# ruff: noqa: N803, N806 - tensors carry their shape

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from jobs.training.switches import Switches


class EncoderBlock(nn.Module):
    """Attention, then a feed-forward network, each with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, 4 * width)
        self.feed_out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTC: Tensor, seen_BT: Tensor | None = None, *, last_only: bool = False) -> Tensor:
        """Return the output of all positions, or of the last; ``seen_BT`` masks the keys (None: no mask)."""
        normed_BTC = self.attention_norm(x_BTC)
        asked_BQC = normed_BTC[:, -1:] if last_only else normed_BTC
        kept_BQC = x_BTC[:, -1:] if last_only else x_BTC
        kept_BQC = kept_BQC + self.dropout(self._attend(asked_BQC, normed_BTC, seen_BT))
        hidden_BQC = self.feed_out(F.gelu(self.feed_in(self.feed_norm(kept_BQC))))
        return kept_BQC + self.dropout(hidden_BQC)

    def _attend(self, asked_BQC: Tensor, x_BTC: Tensor, seen_BT: Tensor | None) -> Tensor:
        q_BHQD = self.query(asked_BQC).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k_BHTD, v_BHTD = self.key_value(x_BTC).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask_B11T = None if seen_BT is None else seen_BT[:, None, None, :]
        y_BHQD = F.scaled_dot_product_attention(q_BHQD, k_BHTD, v_BHTD, attn_mask=mask_B11T)
        return self.attention_out(y_BHQD.transpose(1, 2).flatten(2))


def through(
    blocks: Iterable[nn.Module], x_BTC: Tensor, seen_BT: Tensor | None = None, *, recompute: bool
) -> Tensor:
    """Return the output of a stack of blocks; activations are kept, or recomputed in the backward pass."""
    for block in blocks:
        x_BTC = checkpoint(block, x_BTC, seen_BT, use_reentrant=False) if recompute else block(x_BTC, seen_BT)
    return x_BTC


def tell_recomputing(switches: Switches, layers: int) -> None:
    """Record whether activations are recomputed, which applies to all layers but the last."""
    if switches.profile.activation_checkpointing and layers == 1:
        why = "all layers but the last are computed again, and there is one layer"
        switches.fell_back("activation_checkpointing", value=False, why=why)
    else:
        switches.applied("activation_checkpointing")


def initialise(module: nn.Module) -> None:
    """Initialise a layer with small random weights and zero bias; use it with ``nn.Module.apply``."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
