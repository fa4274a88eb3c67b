"""The pool sizes that tests share: a mark each."""

from __future__ import annotations

import pytest

from .vllm import MIB, VllmSettings

ROOMY = VllmSettings(kv_bytes=256 * MIB, max_model_len=65_536)
"""524,256 tokens: above the working set of the bundled trace."""
TIGHT = VllmSettings(kv_bytes=8 * MIB, max_model_len=8_192)
"""16,352 tokens: one more prompt of 1,024 than 15 already pushes others out."""

roomy = pytest.mark.parametrize("vllm", [pytest.param(ROOMY, id="roomy")], indirect=True)
tight = pytest.mark.parametrize("vllm", [pytest.param(TIGHT, id="tight")], indirect=True)
