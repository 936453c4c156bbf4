"""Write train.bin, val.bin and meta.pkl of a text that is made here."""

import pickle
import random

import numpy as np

words = "the a king queen of and to speaks walks sleeps wakes with in crown sword river night day".split()
draw = random.Random(1)
text = "".join(draw.choice(words) + draw.choice("  ,.\n") for _ in range(6000))
chars = sorted(set(text))
stoi = {ch: i for i, ch in enumerate(chars)}
ids = np.array([stoi[ch] for ch in text], dtype=np.uint16)
cut = int(len(ids) * 0.9)
ids[:cut].tofile("train.bin")
ids[cut:].tofile("val.bin")
with open("meta.pkl", "wb") as file:
    pickle.dump({"vocab_size": len(chars)}, file)
print(f"{len(ids)} tokens, {len(chars)} characters")
