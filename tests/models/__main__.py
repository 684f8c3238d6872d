"""`python -m tests.models DIR` writes every tiny model into DIR as NAME.gguf."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import TINY_MODELS, write_model

parser = argparse.ArgumentParser(prog="python -m tests.models", description=__doc__)
parser.add_argument("folder", type=Path, metavar="DIR")
folder: Path = parser.parse_args().folder
folder.mkdir(parents=True, exist_ok=True)
for name in TINY_MODELS:
    write_model(name, folder / f"{name}.gguf")
    print(folder / f"{name}.gguf")
