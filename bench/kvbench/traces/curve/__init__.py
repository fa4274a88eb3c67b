"""The exact miss-ratio curve of a prefix cache on a trace: hits at every capacity at once.

paths.py puts the trace's chains of blocks into one tree of paths, runs.py cuts each request into runs of blocks that
were last touched together, hits.py turns runs into hits by capacity (dominance.py counts what came in between), and
measure.py does all of it for an open trace and says by which rule.
"""
