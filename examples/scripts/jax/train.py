"""JAX on a CPU: a jitted step, arrays in .npz files, and the newest of them is looked for at the start."""

import glob
import os

import jax
import jax.numpy as jnp
import numpy as np

STEPS, EVERY = 20000, 100


def init(key):
    one, two = jax.random.split(key)
    return {"w1": 0.3 * jax.random.normal(one, (16, 64)), "w2": 0.1 * jax.random.normal(two, (64, 1))}


def loss_fn(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w1"]) @ params["w2"] - y) ** 2)


@jax.jit
def update(params, step):
    x = jax.random.normal(jax.random.fold_in(jax.random.key(1), step), (64, 16))
    loss, grads = jax.value_and_grad(loss_fn)(params, x, jnp.sin(x).sum(1, keepdims=True))
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), loss


def main():
    os.makedirs("ckpts", exist_ok=True)
    params, first = init(jax.random.key(0)), 0
    if found := sorted(glob.glob("ckpts/ckpt_*.npz")):
        with np.load(found[-1]) as saved:
            params = {name: jnp.asarray(saved[name]) for name in params}
        first = int(found[-1][-11:-4])
        print(f"restored {found[-1]}", flush=True)
    for step in range(first, STEPS):
        params, loss = update(params, step)
        if (step + 1) % EVERY == 0:
            np.savez(f"ckpts/ckpt_{step + 1:07d}.npz", **params)
            print(f"step {step + 1} loss {loss:.5f}", flush=True)
    np.savez("final.npz", **params)


if __name__ == "__main__":
    main()
