"""Two groups of runs side by side: pairs (turn by turn), resample (intervals), report (all of it as one object)."""
