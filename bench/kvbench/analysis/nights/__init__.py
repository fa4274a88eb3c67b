"""Nights of a nightly job, over run directories.

spec      what a nightly job does, read from TOML and checked before its first run
history   the runs of a directory by key, each metric over nights; and the stored runs that can be a baseline
verdict   the gate over one night, between its sides or against stored runs
"""
