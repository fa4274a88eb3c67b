"""Real servers as fixtures. A module asks for a vLLM of its size with a mark and uses `vllm` (and `kvbench`):

    pytestmark = [pytest.mark.real, roomy]           from servers.sizes import roomy, tight

One vLLM lives at a time; tests are ordered so that each size is started once. `llama` is a llama.cpp server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from servers.llama import LlamaServer, LlamaSettings, llama_server
from servers.serve import Server
from servers.vllm import VllmServer, VllmSettings, vllm_server

RunKvbench = Callable[..., subprocess.CompletedProcess[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def size(item: pytest.Item) -> tuple[int, str]:
        callspec = getattr(item, "callspec", None)
        settings = callspec.params.get("vllm") if callspec is not None else None
        return (settings.kv_bytes, str(settings)) if isinstance(settings, VllmSettings) else (0, "")

    items.sort(key=size)


@pytest.fixture(scope="session")
def vllm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A vLLM of the size that the module's mark asks for, shared by all tests of that size."""
    with vllm_server(request.param, tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    """A llama.cpp server with four slots."""
    with llama_server(LlamaSettings(slots=4), tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture
def client(vllm: VllmServer) -> Iterator[httpx.Client]:
    """A plain HTTP client of the server: what kvbench is checked against."""
    with httpx.Client(base_url=vllm.url, timeout=120.0, trust_env=False) as client:
        yield client


@pytest.fixture
def kvbench(vllm: VllmServer, tmp_path: Path) -> RunKvbench:
    """Run the command line as a user does, in tmp_path, on the cores that the engine leaves free.

    kvbench("run", trace, "--endpoint", vllm.url, "--json") -> CompletedProcess with text output. It inherits the cores
    of this process; a run that hangs is ended after `timeout_s`.
    """
    program = str(Path(sys.executable).with_name("kvbench"))

    def run(*arguments: str | os.PathLike[str], timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *map(os.fspath, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return run


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show the tail of the server's log with each failure."""
    report = yield
    for server in getattr(item, "funcargs", {}).values():
        if report.failed and isinstance(server, Server):
            report.sections.append((f"end of {server.log}", server.log_tail()))
    return report
