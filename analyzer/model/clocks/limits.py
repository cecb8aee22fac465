"""Limits of clocks and of the ends of collectives: the numbers that were chosen.

`python3 -m benchmarks.clock` shows what they are worth, on simulated jobs and on recorded ones whose clocks
it sets apart by known times.
"""

from __future__ import annotations

#: Relative drift: the usual tolerance of quartz oscillators.
QUARTZ_PPM = 50.0

#: Ends of one collective: NCCL's kernels end 1 to 7 us apart on 8 ranks of one host. Each end is
#: within `END_LIMIT_NS` of the message that lets it end, so two differ by less than twice that.
END_ERROR_NS, END_LIMIT_NS = 2_000, 10_000
#: Bounds from ends: above the first, ends scatter and bound nothing; below the second, no window is needed.
ENDS_SCATTER_NS, ENDS_SUFFICE_NS = 40_000, 300_000
FEWEST_ENDS = 3

#: Delay of a message between hosts: an edge of a window may miss the truth by so much in any case.
MESSAGE_NS = 500_000
#: The shortest time is that of the third-quickest occurrence, of many that of this share: the rest may be
#: faults of the recording.
QUICK_SHARE, FEWEST_QUICK = 0.02, 2

#: Standard deviations from the centre beyond which a value is an outlier (Rousseeuw, Leroy 1987, ch. 1).
OUTLIER = 2.5
#: An estimate that is nearer to another than this many times its doubt does not contradict it.
AGREES = 1.5

#: Each of so many hosts is compared with each; windows of more are not closed over all pairs.
ALL_PAIRS, ALL_WINDOWS = 16, 128
#: Offsets are whole microseconds where all windows are at least that wide.
ROUNDED_FROM_NS = 100_000
