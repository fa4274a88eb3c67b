"""From a plan's profile to what fits, what hits, how fast it goes, and what it costs: `kvbench plan`.

fields and profile read what the user says; traffic reads a trace; the others are one part of the account each, put
together by report. The arithmetic itself is in kvbench.analysis.plan.
"""
