"""A training loop like torchtitan's, on any number of ranks; the recording is augmented while the training goes on.

    torchrun --nproc-per-node 2 examples/training/loop.py traces

torchtitan itself has a profiler of its own: see ``torchtitan_profiler.py``.
"""

from __future__ import annotations

import logging
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import augment.torch

STEPS = 8


def main(folder: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", dist.get_rank()) if torch.cuda.is_available() else torch.device("cpu")
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
    model = DistributedDataParallel(layers.to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    with augment.torch.profile(folder, run="loop", wait=2, warmup=1, active=3) as profiler:
        for _ in range(STEPS):
            model(torch.randn(32, 64, device=device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
