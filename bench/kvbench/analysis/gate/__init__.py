"""The gate: whether runs are worse than a baseline, with "cannot tell" as an answer.

expression   what `--fail-if` and `--slo` say, parsed
decide       the statistics, over arrays; reports/gate simulates these very functions
power        how many runs a wanted power needs
evidence     a run, or another tool's result file, as the gate sees it
validity     why runs cannot be compared
judge        all of it together: the verdict and its gates
"""
