"""Tolerances and thresholds by which steps and their graphs are found: the numbers that were chosen.

What a format, a library or a device itself states (sizes, ids, years) stands where it is used.
"""

from __future__ import annotations

# ---- steps that nothing marks: the training loop shows them

#: Times in whole microseconds are off by this.
ROUNDED_TIMES_NS = 1_000
#: Times that a span must repeat to be taken for the loop's body, the share of the time in which its thread is
#: busy that it must cover, and what of its upper quartile the lower quartile of its durations must be.
LEAST_REPEATS, BODY_COVERS, BODY_ALIKE = 3, 0.5, 1 / 3
#: The share that a span must cover in which no other span is: less of it is a part of the loop.
BODY_ALONE = 0.9

#: Processes with this share of each other's slices, and of the recording's time, look like ranks.
LIKE_RANKS = 0.8

# ---- recordings cut into steps

#: So many steps that follow each other are taken of very many.
IN_A_ROW = 16
#: Events of all steps together that are many, however few were recorded; and how often one may be an event.
ALWAYS_FEW, MOST_TIMES = 2_000_000, 4
#: On a device an end may seem so much later than the start of what waited for it.
JITTER_NS = 500_000

# ---- BytePS

#: A dependency that the recording contradicts more often than this is not used.
MAX_CONTRADICTED = 0.1
#: Threads read the clock a little late; a start that is earlier by less contradicts nothing.
LATE_CLOCK_NS = 50_000
#: Of a tensor's communications a partition can lie in the last that began before it: they do not overlap.
MOST_WHOLES = 8
#: A last step whose end is not recorded is left out where it holds fewer events, of what others hold.
MIN_RECORDED = 0.9

# ---- DASF

#: A result that is stamped this much later than the task that takes it began still counts: both are rounded.
LATE_RESULT_NS = 1_000_000

# ---- Horovod

#: Horovod's thread looks for ready tensors once per cycle (1 ms if HOROVOD_CYCLE_TIME is not set), and
#: not while it reduces others: what it notices within a cycle after that may have been ready before.
CYCLE_NS = 1_000_000
#: What a rank is ready with no later than this after the tensor before is one hand-over.
AT_ONCE_NS = 50_000
#: Share of the recorded waiting that must be for one rank, to take it for the last where no ticks are.
CLEARLY_LAST = 2 / 3

# ---- Kineto

#: Clocks of host and device, and whole microseconds, agree to about this.
TOLERANCE_NS = 2_000
#: Begins and lengths are rounded each, so that an end may seem later than the start that followed it.
ROUNDED_NS = 10
#: Of the launches of a recording, or of a step, so many may lack their work on the device. Sound recordings
#: of PyTorch lack none, of Nsight up to 0.5 %.
LOST_LAUNCHES = 0.01
#: A stream runs one thing at a time: by this share of its time, up to `JITTER_NS`, work may seem to end after
#: the next one has begun.
OVERLAP = 0.25
#: A launch queue has room for this many commands, …
QUEUE = 1024
#: … events and graphs among them, so that it may be full of fewer launches, …
FULL_QUEUE = 512
#: … and a call that waits for room takes this many times the usual one, and at least 10 µs.
MUCH_LONGER, LONG_CALL_NS = 4, 10_000
#: A pause on a stream that is longer than the usual one by this factor has a cause.
UNUSUAL = 2
#: A thread that was idle for less than this may just not have been recorded …
UNRECORDED_NS = 20_000
#: … and the main thread resumes within this share of its idle time after what it waited for has ended.
SOON = 0.5
#: A Python function that took less, and of a short recording less than this share, explains no pause.
LONG_FUNCTION_NS, LONG_FUNCTION = 1_000_000, 0.001
#: A first step whose work is done so much later than its host (a share of it) has filled the device's queue,
#: and lasts longer than any other; as much as of a step is worth a finding.
FILLS_QUEUE = 0.01
#: Share of the launches by two threads from which on no other runs the same steps beside them.
BY_LOOP = 0.9
#: Clocks of host and device agree to about this, where steps are told complete.
AGREE_NS = 50_000

# ---- pipelines

#: Of what ranks do together this share begins within so much, where only transfers are drawn.
TOGETHER_NS, MOSTLY_TOGETHER = 1_000, 0.9

# ---- hosts that poll

#: What polls for a result takes at least this …
POLLS_NS = 500_000
#: … and has seen it within this share of the time that it waited for it. In the four optimizer steps of a
#: recorded job it waits for 93 to 117 ms and sees it 0.2 to 16 ms later.
SHORTLY = 0.25
