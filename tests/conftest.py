"""Puts this folder on the import path, so that every test can `from builders import ...`.

Each process that runs tests computes with one thread, unless OMP_NUM_THREADS says otherwise: `make test` starts two.
Programs that tests start inherit it.
"""

from __future__ import annotations

import os
import random

# Read when torch is loaded, which nothing has done yet.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", os.environ["OMP_NUM_THREADS"])


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files, and the tests of each, in a random order")


def pytest_collection_modifyitems(config, items):
    """Whole files stay together: what a module's tests share is built once."""
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    draw = random.Random(seed)
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = list(files.values())
    draw.shuffle(order)
    for tests in order:
        draw.shuffle(tests)
    items[:] = [item for tests in order for item in tests]
