"""A convolutional network on MNIST: train, test, and save at the end."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2)
        self.drop = nn.Dropout(0.25)
        self.fc = nn.Linear(8 * 13 * 13, 10)

    def forward(self, x):
        return F.log_softmax(self.fc(self.drop(F.relu(self.conv(x))).flatten(1)), dim=1)


def train(args, model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            done, total = batch_idx * len(data), len(loader.dataset)
            print(
                f"Train Epoch: {epoch} [{done}/{total} ({100.0 * batch_idx / len(loader):.0f}%)]\tLoss: {loss.item():.6f}",
                flush=True,
            )


def test(model, loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(1).eq(target).sum().item()
    total = len(loader.dataset)
    print(
        f"\nTest set: Average loss: {loss / total:.4f}, Accuracy: {correct}/{total} ({100.0 * correct / total:.0f}%)\n",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description="MNIST")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--no-accel", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save-model", action="store_true")
    parser.add_argument("--data", default="../data")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cpu" if args.no_accel or not torch.cuda.is_available() else "cuda")
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset1 = datasets.MNIST(args.data, train=True, download=True, transform=transform)
    dataset2 = datasets.MNIST(args.data, train=False, transform=transform)
    train_loader = torch.utils.data.DataLoader(dataset1, args.batch_size, shuffle=True)
    test_loader = torch.utils.data.DataLoader(dataset2, 64)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()
    if args.save_model:
        torch.save(model.state_dict(), "mnist_cnn.pt")


if __name__ == "__main__":
    main()
