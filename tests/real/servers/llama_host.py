"""llama.cpp's own HTTP server out of the xllamacpp package: llama_host.py MODEL.gguf PORT SLOTS SLOT_TOKENS.

Runs until SIGTERM or SIGINT. The host-memory prompt cache is off: only live slots keep KV.
"""

from __future__ import annotations

import signal
import sys

import xllamacpp


def main() -> None:
    model, port, slots, slot_tokens = sys.argv[1], *map(int, sys.argv[2:])
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.model_alias = {"tiny"}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_parallel = slots
    parameters.n_ctx = slots * slot_tokens
    parameters.n_batch = 2048
    parameters.n_ubatch = 512
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.cache_ram_mib = 0
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    parameters.use_jinja = True
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    server = xllamacpp.Server(parameters)
    print("listening on", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
