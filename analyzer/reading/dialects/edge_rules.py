"""The rules that connect events of a step: every edge of a step graph carries the number of its rule."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from analyzer.base.arrays import Int64, NDArray


class EdgeKind(IntEnum):
    """Why the target of an edge waits for its source."""

    DATA = 0  # needs its result
    DEVICE = 1  # next on the same thread, stream or link
    LAUNCH = 2  # a kernel after its CPU call
    SYNCHRONISE = 3  # a host call waits for work on a device, a stream waits for an event
    MESSAGE = 4  # over the network from another worker
    GROUP = 5  # all ranks of the group have reached it
    HAND_OVER = 6  # an idle thread resumed when it ended, inferred from the times
    QUEUE = 7  # the launch queue had no room before it began
    PART = 8  # a part and its whole
    EXCHANGE = 9  # only of a `Meeting`: the partners are not recorded

    @property
    def label(self) -> str:
        """The kind as words."""
        return self.name.lower().replace("_", " ")


class Rule(IntEnum):
    """A rule by which one event waits for another. If several connect two events, the first is kept."""

    kind: EdgeKind
    sentence: str

    def __new__(cls, kind: EdgeKind, sentence: str) -> Rule:
        """Give the rule the next number."""
        rule = int.__new__(cls, len(cls.__members__))
        rule._value_ = len(cls.__members__)
        rule.kind, rule.sentence = kind, sentence
        return rule

    GRAPH = EdgeKind.DATA, "an operation starts after its inputs in the model's graph"
    UPDATE = EdgeKind.DATA, "the update of the model ends after the communications of its step"
    STAGE = EdgeKind.DATA, "a partition passes through the stages of its communication in order"
    RESULT = EdgeKind.DATA, "a task starts after the tasks whose results it takes"
    TRANSFER = EdgeKind.DATA, "a rank receives what another one has begun to send"
    FIRST_READY = EdgeKind.DATA, "a tensor is negotiated once a rank has computed its gradient"
    NEGOTIATED = EdgeKind.DATA, "a tensor is reduced after its negotiation"
    REDUCED = EdgeKind.DATA, "a rank computes a gradient after the reduction that it may need"
    EDITED = EdgeKind.DATA, "the edit lets it wait"
    THREAD = EdgeKind.DEVICE, "a thread does one thing at a time, in order"
    STREAM = EdgeKind.DEVICE, "a stream runs one kernel or copy at a time, in order"
    LINK = EdgeKind.DEVICE, "a link carries one transfer at a time"
    ONE_COLLECTIVE = EdgeKind.DEVICE, "a library carries out one collective at a time"
    BUSY = EdgeKind.DEVICE, "a path follows a device while that works, and not its host"
    LAUNCH = EdgeKind.LAUNCH, "a kernel or copy starts after its launch call"
    ENQUEUED = EdgeKind.LAUNCH, "a collective of the host starts after the call that enqueued it"
    STREAM_EVENT = EdgeKind.SYNCHRONISE, "a stream waits for an event that another stream recorded"
    STREAM_TIMES = EdgeKind.SYNCHRONISE, "work of an idle stream starts as work of another stream ends"
    COMPUTED = EdgeKind.SYNCHRONISE, "a collective starts after the kernel launched before it that computes"
    AWAITED = EdgeKind.SYNCHRONISE, "a call that synchronises ends after the device's work"
    POLLED = EdgeKind.SYNCHRONISE, "a host that polls continues after the device's work"
    COMPLETE = EdgeKind.SYNCHRONISE, "what waits beyond the step waits until the step is complete"
    SERVER = EdgeKind.MESSAGE, "a partition is pulled after all workers have pushed it"
    RESULT_SENT = EdgeKind.MESSAGE, "a task starts after results of other workers have come"
    ARROW = EdgeKind.MESSAGE, "an arrow of the trace leads from one slice to another"
    COLLECTIVE = EdgeKind.GROUP, "a collective ends after its last rank has started it"
    READY = EdgeKind.GROUP, "a GPU continues when the others of its worker have come this far"
    LAST_READY = EdgeKind.GROUP, "a negotiation ends when the last rank is ready"
    IDLE_THREAD = EdgeKind.HAND_OVER, "an idle thread resumes when something on another thread ends"
    NAMED_WAIT = EdgeKind.HAND_OVER, "an operation that waits ends after what ended last during it"
    ANSWERED = EdgeKind.HAND_OVER, "a call waits until another thread has answered it"
    UNLAUNCHED = EdgeKind.HAND_OVER, "work without a recorded launch starts after what ended last before it"
    AFTER_COMPUTATION = EdgeKind.HAND_OVER, "an operation without known inputs follows the last computation"
    ROOM = EdgeKind.QUEUE, "a launch waits until the device's queue has room"
    PART = EdgeKind.PART, "a communication starts with its first part and ends with its last one"
    EXCHANGE = EdgeKind.EXCHANGE, "ranks exchange data, it is not recorded which"


#: The table of rules, by their numbers.
RULES = tuple(Rule)
_KINDS = np.array([rule.kind for rule in RULES], np.int8)


def kinds_of(edges: Int64) -> NDArray[np.int8]:
    """Look up the `EdgeKind` of each edge (m, 4)."""
    return np.asarray(_KINDS[edges[:, 3]])
