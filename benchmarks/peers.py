"""An environment of its own for the peers that the benchmarks compare with: TRL, Liger and what they need, pinned.

    python benchmarks/peers.py [--peers FOLDER]

It lies in .cache/peers, which git ignores, and is made anew whenever peers-requirements.txt changes. Nothing of it is a
dependency of the package: the benchmarks start its Python as another process (see sides.py).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
REQUIREMENTS = Path(__file__).parent / "peers-requirements.txt"
PEERS_FOLDER = ROOT / ".cache" / "peers"


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peers", type=Path, default=PEERS_FOLDER, help="the peers' environment (default: %(default)s)"
    )


def peers_python(folder: Path) -> Path:
    """The Python of the peers' environment in `folder`, which is made first if it is absent or out of date."""
    python = folder / "bin" / "python"
    installed = folder / ".installed"
    wanted = REQUIREMENTS.read_text(encoding="utf-8")
    if not installed.is_file() or installed.read_text(encoding="utf-8") != wanted:
        print(f"making the peers' environment in {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)], check=True)
        installed.write_text(wanted, encoding="utf-8")
    return python


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_option(options)
    print(peers_python(options.parse_args().peers))
