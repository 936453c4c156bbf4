"""A GPT on characters, in the style of nanoGPT: settings are globals, --name=value changes one, one file of state."""

import math
import os
import pickle
import sys
import time
from ast import literal_eval

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

out_dir = "out"
init_from = "scratch"  # or "resume"
max_iters = 600
eval_interval = 50
eval_iters = 4
log_interval = 10
batch_size = 8
block_size = 32
n_layer = 2
n_head = 2
n_embd = 32
learning_rate = 1e-3
warmup_iters = 20
grad_clip = 1.0
always_save_checkpoint = True
config_keys = [
    k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))
]
for arg in sys.argv[1:]:
    key, _, value = arg.removeprefix("--").partition("=")
    if key not in config_keys:
        raise ValueError(f"Unknown config key: {key}")
    try:
        value = literal_eval(value)
    except (SyntaxError, ValueError):
        pass
    print(f"Overriding: {key} = {value}")
    globals()[key] = value

torch.manual_seed(1337)
os.makedirs(out_dir, exist_ok=True)
with open("meta.pkl", "rb") as file:
    vocab_size = pickle.load(file)["vocab_size"]


def get_batch(split):
    data = np.memmap(f"{split}.bin", dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x, y


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        block = nn.TransformerEncoderLayer(
            n_embd, n_head, 4 * n_embd, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.h = nn.TransformerEncoder(block, n_layer, enable_nested_tensor=False)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        x = self.h(self.wte(idx) + self.wpe(torch.arange(idx.size(1))), mask=mask, is_causal=True)
        logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {
        split: sum(model(*get_batch(split)).item() for _ in range(eval_iters)) / eval_iters
        for split in ("train", "val")
    }
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    return learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * it / max_iters)))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num, best_val_loss = 0, 1e9
if init_from == "resume":
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num, best_val_loss = checkpoint["iter_num"], checkpoint["best_val_loss"]

t0 = time.time()
while True:
    lr = get_lr(iter_num)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
        if losses["val"] < best_val_loss or always_save_checkpoint:
            best_val_loss = losses["val"]
            if iter_num > 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "iter_num": iter_num,
                    "best_val_loss": best_val_loss,
                }
                print(f"saving checkpoint to {out_dir}")
                torch.save(state, os.path.join(out_dir, "ckpt.pt"))
    loss = model(*get_batch("train"))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    t1 = time.time()
    if iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {(t1 - t0) * 1000:.2f}ms", flush=True)
    t0 = t1
    iter_num += 1
    if iter_num > max_iters:
        break
