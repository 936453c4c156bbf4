"""A recurrent language model on words, in the style of the PyTorch examples: the best model is kept whole in one file."""

import argparse
import math
import random
import time

import torch
from torch import nn

parser = argparse.ArgumentParser(description="RNN language model")
parser.add_argument("--model", default="LSTM", choices=["LSTM", "GRU"])
parser.add_argument("--emsize", type=int, default=32)
parser.add_argument("--lr", type=float, default=5)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--bptt", type=int, default=16)
parser.add_argument("--seed", type=int, default=1111)
parser.add_argument("--log-interval", type=int, default=20)
parser.add_argument("--save", default="model.pt")
args = parser.parse_args()
torch.manual_seed(args.seed)

draw = random.Random(args.seed)
corpus = torch.tensor([min(int(draw.expovariate(0.1)), 99) for _ in range(16000)])


def batchify(data):
    rows = data.size(0) // args.batch_size
    return data[: rows * args.batch_size].view(args.batch_size, -1).t().contiguous()


train_data, val_data, test_data = (
    batchify(corpus[:12000]),
    batchify(corpus[12000:14000]),
    batchify(corpus[14000:]),
)


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(100, args.emsize)
        self.drop = nn.Dropout(0.2)
        self.rnn = getattr(nn, args.model)(args.emsize, args.emsize, 2, dropout=0.2)
        self.decoder = nn.Linear(args.emsize, 100)

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return self.decoder(self.drop(output)).view(-1, 100), hidden


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


def batches(source):
    for i in range(0, source.size(0) - 1, args.bptt):
        length = min(args.bptt, len(source) - 1 - i)
        yield source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


def evaluate(source):
    model.eval()
    hidden, total = None, 0.0
    with torch.no_grad():
        for data, targets in batches(source):
            output, hidden = model(data, hidden)
            total += len(data) * criterion(output, targets).item()
    return total / (len(source) - 1)


def train(epoch):
    model.train()
    hidden, total, start = None, 0.0, time.time()
    for batch, (data, targets) in enumerate(batches(train_data)):
        model.zero_grad()
        output, hidden = model(data, hidden)
        hidden = repackage_hidden(hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
        if batch % args.log_interval == 0 and batch > 0:
            cur, ms = total / args.log_interval, (time.time() - start) * 1000 / args.log_interval
            print(
                f"| epoch {epoch:3d} | {batch:5d}/{len(train_data) // args.bptt:5d} batches | lr {lr:02.2f} "
                f"| ms/batch {ms:5.2f} | loss {cur:5.2f} | ppl {math.exp(cur):8.2f}",
                flush=True,
            )
            total, start = 0.0, time.time()


model, criterion, lr, best_val_loss = RNNModel(), nn.CrossEntropyLoss(), args.lr, None
for epoch in range(1, args.epochs + 1):
    train(epoch)
    val_loss = evaluate(val_data)
    print("-" * 60)
    print(f"| end of epoch {epoch:3d} | valid loss {val_loss:5.2f} | valid ppl {math.exp(val_loss):8.2f}")
    print("-" * 60, flush=True)
    if not best_val_loss or val_loss < best_val_loss:
        with open(args.save, "wb") as f:
            torch.save(model, f)
        best_val_loss = val_loss
    else:
        lr /= 4.0
with open(args.save, "rb") as f:
    model = torch.load(f, weights_only=False)
test_loss = evaluate(test_data)
print("=" * 60)
print(f"| End of training | test loss {test_loss:5.4f} | test ppl {math.exp(test_loss):8.2f}")
