"""A real vLLM on CPU, serving the tiny model.

The model spends 512 bytes of KV a token in bfloat16; of the pool's blocks one is vLLM's null block, so
    usable tokens = (kv_bytes / bytes_per_token / block_size - 1) * block_size.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .cores import client_on, pin_engine
from .install import VLLM
from .models import tiny_model
from .serve import Server, free_port, running

MODEL = "tiny"
LAYERS, KV_HEADS, HEAD_DIM, WINDOW = 2, 2, 32, 512
"""As tiny_model.py has them, which needs a package that is only in vLLM's own environment."""
KV_BYTES_PER_TOKEN = 512
MIB = 1 << 20
START_TIMEOUT_S = 300.0
ENVIRONMENT = {
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_SERVER_DEV_MODE": "1",  # offers /reset_prefix_cache
    "VLLM_CPU_OMP_THREADS_BIND": "0",  # one compute thread: two on the engine's one core would wait for each other
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


@dataclass(frozen=True)
class VllmSettings:
    """What tests vary. kv_bytes: size of the KV pool; block_size and max_model_len in tokens; model: one of
    models.SHAPES; dtype: of weights, and of the KV cache unless kv_cache_dtype says otherwise."""

    kv_bytes: int = 8 * MIB
    block_size: int = 32
    max_model_len: int = 8_192
    model: str = "tiny"
    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    prefix_caching: bool = True
    reports_cached: bool = True

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in the layers that keep all tokens: both of the tiny model, one of `tiny-window`."""
        return self._layer_bytes * (1 if self.model == "tiny-window" else LAYERS)

    @property
    def bytes_per_session(self) -> int:
        """What a session longer than the window takes besides: the blocks that hold the window's last tokens."""
        if self.model != "tiny-window":
            return 0
        return -(-(WINDOW - 1) // self.block_size) * self.block_size * self._layer_bytes

    @property
    def _layer_bytes(self) -> int:
        """Of a token in one layer."""
        size = 1 if self.kv_cache_dtype.startswith("fp8") else {"bfloat16": 2, "float32": 4}[self.dtype]
        return 2 * KV_HEADS * HEAD_DIM * size

    @property
    def capacity_tokens(self) -> int:
        """Tokens the pool can hold for requests."""
        return (self.kv_bytes // self.bytes_per_token // self.block_size - 1) * self.block_size


@dataclass(frozen=True)
class VllmServer(Server):
    """A healthy vLLM. client_cores: where its client belongs (None: only one core)."""

    settings: VllmSettings
    client_cores: frozenset[int] | None
    model: str = MODEL


@contextlib.contextmanager
def vllm_server(settings: VllmSettings, directory: Path) -> Iterator[VllmServer]:
    """Serve the tiny model on a free loopback port while the block lasts; the log is `directory`/vllm.log.

    The calling thread, and with it every client that a test starts, moves to the cores that the engine leaves free.
    Raises InstallError when vLLM is not installed and ServerError, with the log's tail, when it does not start.
    """
    VLLM.need()
    model, port = tiny_model(VLLM, settings.model), free_port()
    with running(
        _command(settings, model, port),
        port=port,
        log=directory / "vllm.log",
        start_timeout_s=START_TIMEOUT_S,
        environment=ENVIRONMENT | {"PATH": f"{VLLM.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"},
        scratch_names=("VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT"),
    ) as server:
        cores = pin_engine(server.pid)
        with client_on(cores):
            yield VllmServer(url=server.url, pid=server.pid, log=server.log, settings=settings, client_cores=cores)


def _command(settings: VllmSettings, model: Path, port: int) -> list[str]:
    options = {
        "--served-model-name": MODEL,
        "--load-format": "dummy",
        "--seed": 0,
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": settings.dtype,
        "--kv-cache-dtype": settings.kv_cache_dtype,
        "--max-model-len": settings.max_model_len,
        "--block-size": settings.block_size,
        "--kv-cache-memory-bytes": settings.kv_bytes,
        "--max-num-seqs": 16,
        "--max-num-batched-tokens": 2_048,
        "--tool-call-parser": "hermes",
    }
    flags = [
        "--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching",
        *(["--enable-prompt-tokens-details"] if settings.reports_cached else []),
        "--enable-auto-tool-choice",
        "--enforce-eager",
    ]
    vllm = VLLM.python.with_name("vllm")
    return [str(vllm), "serve", str(model), *(str(word) for pair in options.items() for word in pair), *flags]
