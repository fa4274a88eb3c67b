"""kvbench: replay agent traces against live LLM endpoints and measure what the KV cache saved."""

__version__ = "0.1.0"
