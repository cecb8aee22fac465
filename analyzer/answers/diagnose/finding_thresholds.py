"""The numbers that were chosen for `diagnose`: from where on something is a finding, or has a name.

Each is chosen once for all detectors. Where no source is given, nothing measured moved the number: it is a
round one, and findings are ranked by what a replay says they save, so it decides only what is looked at.

Each was halved and doubled (a share at most half of the way to 1) on nine recorded jobs of BytePS, PyTorch,
Composer, Horovod and a pipeline: what is said first changes with `HALF` (four jobs), `CHANCE` (two),
`EXPOSED`, `MOST_STEPS`, `ALIKE`, `MUCH`, `SLOW` and `FAR_MORE` (one each), and with no other.
"""

from __future__ import annotations

# ---- shares of a step, or of what the comment says

#: What nobody acts on: a smaller saving, a smaller excess of a rank, a mean this near to the median, or a
#: peak of memory that grows by less over the recording.
NEGLIGIBLE = 0.01
#: Work, waits and copies that are worth a look. The error that an interval allows for at least is as large
#: (docs/dev/accuracy.md, Method), and claims are counted from here on there in 8.
NOTICEABLE = 0.05
#: Communication, waiting and idle stages that are not as good as hidden.
EXPOSED = 0.10
#: Of the critical path: an operation that is hot; its gain is for being so much faster.
HOT, FASTER = 0.30, 0.10
#: Of the work of a busy device: a kind of kernels to look at first.
DOMINANT = 0.40
#: Of whatever is shared out: all the rest together is less.
HALF = 0.5
#: Steps in which a rank is behind for it to be so in most steps.
MOST_STEPS = 2 / 3
#: Of the critical path: what the headline calls the limit.
LIMIT = 0.7
#: Of a usual step: a step of a log that is so much longer than those around it stalls. Stalls of recorded
#: logs are from 0.4 to 13 steps long, other steps up to 0.2 (docs/step-logs.md).
STALL = 0.4
#: Of the largest excess of a rank in a span of steps: the ranks that share the blame for it. With 0.4 or 0.8
#: the same ranks are named (docs/dev/accuracy.md, 9).
SHARED_BLAME = 0.6
#: Of what steps are longer by: the part of it that the rows of the rank to blame show, as where others wait
#: in the backward pass, and only its forward pass, a third of both, tells. With 0.5 two of
#: 21 late ranks are no longer found, with 0.12 none more (docs/dev/accuracy.md, 9).
VISIBLE = 0.25
#: What stands for the whole: a device's busy time for the step, an operation for its phase.
NEARLY_ALL = 0.9
#: Of a device's memory that is nearly full: healthy jobs use more than `NEARLY_ALL`.
FULL = 0.95

# ---- ratios

#: A saving alone to what more specific findings leave of it, for the two to be alike. With 1.05 the headlines
#: of recorded jobs are the same, with 1.2 one is another (docs/dev/recorded-jobs.md).
ALIKE = 1.1
#: A rank's work, or its peak of memory, to its peers': so much that few steps show it.
MUCH = 1.25
#: A link's or server's time, or its bytes, to its peers' (docs/dev/accuracy.md, 8, jobs with even seeds).
SLOW = 1.5
#: A rank's excess to the spread of its peers; of steps `arrays.median` calls the same number outlying.
OUTLYING = 3.0
#: A value of a step log to its noise, for it to be far from all of that. A span's are by how many spans and
#: series are looked at.
FAR_NOISES = 8.0
#: The cost of steps that are outliers to the next finding's, for them to lead the headline.
FAR_MORE = 3
#: The longest event of an operation to its mean one, for its events to be called uneven.
SPIKY = 5.0

# ---- chances

#: Of a false finding in a job: the usual level of significance, which four steps (`FEWEST`) can reach.
CHANCE = 0.05

# ---- counts and sizes

#: Short collectives per rank and step, from which on they are many.
MANY_MESSAGES = 16
#: Of a device's collectives whose bytes are not known: they are latency if they take no longer. NCCL's with
#: few bytes take 10 to 50 µs on up to some tens of GPUs (ns).
MOST_LATENCY_NS = 50_000
#: Partitions below the first are small, and merged into such of the second: about BytePS's own 4,096,000.
SMALL_BYTES, LARGE_BYTES = 256 << 10, 4 << 20
#: GB/s that the slowest link between GPUs of one host carries: of the 15.75 of PCI Express 3.0 x16 (8 GT/s,
#: 128b/130b coding) copies reach about 12. Bytes of each rank from which on a collective is not only latency.
SLOWEST_LINK_GBS, BYTES_OF_A_RANK = 12.0, 512 << 10
#: A launch takes some 5 to 10 µs (ns): a kernel that takes no longer is short, and a device that pauses for
#: less waits for none; from kernel to kernel an H200 pauses for 0.4 to 5 µs.
LAUNCH_NS = 10_000
#: After a call's timeout dumps are written within so long (ns): watchdogs look each second, monitors tell
#: other ranks each few seconds, and a dump takes seconds to write.
DUMPED_WITHIN_NS = 60 * 10**9
#: Jobs that live pause for so long (ns), as to save their state: who waits for less may wait for a slow rank.
PAUSE_NS = 30 * 10**9
