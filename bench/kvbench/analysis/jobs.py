"""Figures of jobs: root sessions with their sub-agents that ran to their end, every turn ok. Indexed by root_id."""

from __future__ import annotations

import pandas as pd

from kvbench.analysis.measured import Measured


def job_latencies_s(ran: Measured) -> pd.Series:
    """The scheduled start of a job's first turn to the last chunk of its root session, seconds."""
    jobs = ran.ok[ran.ok["root_id"].isin(list(ran.jobs))]
    end = jobs[jobs["session_id"] == jobs["root_id"]].groupby("root_id")["last_token_at_s"].max()
    return (end - jobs.groupby("root_id")["scheduled_at_s"].min()).dropna()


def ttfat_s(ran: Measured) -> pd.Series:
    """Time to first answer token: the job's scheduled start to the first generated chunk of its root session's last
    turn, seconds.
    """
    jobs = ran.ok[ran.ok["root_id"].isin(list(ran.jobs))]
    roots = jobs[jobs["session_id"] == jobs["root_id"]].sort_values("turn")
    answer: pd.Series = roots.drop_duplicates("root_id", keep="last").set_index("root_id")["first_token_at_s"]
    return (answer - jobs.groupby("root_id")["scheduled_at_s"].min()).dropna()


def jobs_per_h_per_user(ran: Measured) -> float | None:
    """3600 / mean job latency: what one user who starts the next job at once gets done in an hour."""
    latency = job_latencies_s(ran)
    return 3600.0 / float(latency.mean()) if len(latency) and latency.mean() > 0 else None
