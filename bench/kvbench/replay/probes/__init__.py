"""Designed experiments: what to send an endpoint so that its answers tell what no replay can. Each writes a run."""
