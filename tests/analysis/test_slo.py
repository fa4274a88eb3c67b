"""Which turns are good, and of which turns that is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kvbench.analysis.measured import measured
from kvbench.analysis.metrics import scalar
from kvbench.analysis.slo import Slo, good
from kvbench.runs.reader import load_run

FIXTURE = Path(__file__).parent.parent / "fixtures" / "run-schema-1"


def test_what_a_turn_does_not_have() -> None:
    ok = pd.DataFrame({"tpot_s": [0.01, np.nan, 0.03], "ttfo_s": [1.0, np.nan, 3.0]})
    met = good(ok, (Slo("tpot_s", 0.02),))
    assert met is not None
    assert met.tolist() == [True, True, False], "one token has no time per token to miss"
    met = good(ok, (Slo("ttfo_s", 2.0),))
    assert met is not None
    assert met.tolist() == [True, False, False], "an answer that never came was not in time"
    silent = ok.assign(ttft_s=np.nan)
    assert good(silent, (Slo("tpot_s", 0.02), Slo("ttft_s", 2.0))) is None, "no turn reports it"
    assert good(silent.iloc[:0], (Slo("ttft_s", 2.0),)) is not None, "no turn that succeeded is none that is good"


def test_a_turn_that_ends_after_the_window_is_good_and_in_no_rate() -> None:
    ran = measured(load_run(FIXTURE), (Slo("ttft_s", 1.0),))
    assert (len(ran.ok), len(ran.finals)) == (4, 6)
    assert ran.window is not None
    middle = sorted(ran.ok["end_at_s"])[1]
    cut = replace(ran, window=(ran.window[0], middle))
    assert scalar(cut, "good_fraction") == 4 / 6
    assert scalar(cut, "goodput_per_s") == pytest.approx(2 / (middle - ran.window[0]))
