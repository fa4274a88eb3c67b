"""The tiny model in the forms the servers read, written once into the directory of the real servers."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from .install import Recipe, real_dir
from .serve import HERE

CONFIG_SCRIPT = HERE / "tiny_model.py"
GGUF_SCRIPT = HERE / "tiny_gguf.py"


def tiny_model(recipe: Recipe, shape: str = "tiny") -> Path:
    """Directory with configuration and tokenizer, without weights; `recipe`'s environment has `tokenizers`. shape: one
    of tiny_model.SHAPES."""
    return _written(shape, [CONFIG_SCRIPT], lambda out: [recipe.python, CONFIG_SCRIPT, out, shape])


def tiny_gguf(recipe: Recipe) -> Path:
    """The same model as a GGUF file with random weights; `recipe`'s environment has `gguf`."""
    source = tiny_model(recipe)
    scripts = [CONFIG_SCRIPT, GGUF_SCRIPT]
    return _written("tiny-gguf", scripts, lambda out: [recipe.python, GGUF_SCRIPT, source, out]) / "tiny.gguf"


def _written(name: str, scripts: list[Path], command: Callable[[Path], list[str | Path]]) -> Path:
    """Directory named by the scripts that fill it; appears whole or not at all."""
    fingerprint = hashlib.sha256(b"".join(script.read_bytes() for script in scripts)).hexdigest()[:12]
    directory = real_dir() / f"{name}-{fingerprint}"
    if not directory.is_dir():
        half = Path(tempfile.mkdtemp(dir=real_dir()))
        subprocess.run(command(half), check=True, env=os.environ | {"TOKENIZERS_PARALLELISM": "false"})
        try:
            half.rename(directory)
        except OSError:  # somebody else was faster
            shutil.rmtree(half)
    return directory
