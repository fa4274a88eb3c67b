"""Reports are folders of scripts whose names are alike (run, page, report): one test's must not be another's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPORTS = str(Path(__file__).parents[2] / "reports")


@pytest.fixture(autouse=True)
def _scripts_of_this_test_alone() -> Iterator[None]:
    _forget()
    yield
    _forget()


def _forget() -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(REPORTS):
            del sys.modules[name]
