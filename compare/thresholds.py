"""Thresholds of a comparison: which changes are real, and which matter; each with its reason."""

from __future__ import annotations

#: A difference is significant where its p-value is at most this: the convention.
LEVEL = 0.05
#: Steps that a run needs for a p-value: two hardly tell how much steps vary.
FEWEST_STEPS = 3
#: Steps from which on the correlation of neighbours can be told from chance (Bartlett's bound is 0.7 then).
FEWEST_FOR_CORRELATION = 8
#: Quantities that tell together how much such quantities vary: two numbers are fitted to them (Smyth, 2004).
FEWEST_ALIKE = 10
#: Of a step: smaller operations are not tested beside the large ones, smaller categories not at all.
WORTH_TESTING = 0.001
#: Where one change is real, Benjamini and Hochberg allow more false ones than the level: a factor that keeps
#: false alarms at it (benchmarks/compare.py counts them).
CAUTION = 0.9
#: Of the iteration's change: what the own work of a rank must explain for the rank to be its cause.
STRAGGLES = 0.3
