"""Where a rank stands in a job of several kinds of parallelism, as names of threads and processes say."""

from __future__ import annotations

import re
from typing import NamedTuple

from dialects.system import Metadata
from formats.columns import Id, Track

#: ``PP rank 0, TP rank 1, compute`` of a thread, ``DP rank [0]`` of a process; ``DP0-PP1-TP0``.
_PLACE = re.compile(r"\b(PP|DP|CP|EP|TP)[ _-]?(?:rank)?[ _]?\[?(\d{1,9})\]?(?!\w)", re.IGNORECASE)


class Place(NamedTuple):
    """The place of a rank along each kind of parallelism, in the order in which ranks are numbered."""

    pp: int = 0  # the stage of the pipeline
    dp: int = 0
    cp: int = 0
    ep: int = 0
    tp: int = 0


def states_stage(metadata: Metadata) -> bool:
    """Whether the name of a thread or process states the stage of a pipeline."""
    return any("pp" in _stated(event["args"].get("name")) for event in metadata)


def places_of(metadata: Metadata) -> dict[Track, Place]:
    """Return the place of each thread that is named, by its own name and its process's."""
    names = {kind: [e for e in metadata if e["name"] == kind] for kind in ("process_name", "thread_name")}
    of_process = {event["pid"]: _stated(event["args"].get("name")) for event in names["process_name"]}
    found = {
        Track(event["pid"], event["tid"]): {
            **of_process.get(event["pid"], {}),
            **_stated(event["args"].get("name")),
        }
        for event in names["thread_name"]
    }
    found |= {Track(pid, None): stated for pid, stated in of_process.items()}
    return {track: Place(**stated) for track, stated in found.items() if "pp" in stated}


def place_of(places: dict[Track, Place], track: Track) -> Place | None:
    """Return the place of a thread, of its process where it has no name itself."""
    return places.get(track) or places.get(Track(track.pid, None))


def thread_names(metadata: Metadata) -> dict[tuple[Id, Id], str]:
    """Return the names of threads."""
    named = (event for event in metadata if event["name"] == "thread_name")
    return {(event["pid"], event["tid"]): str(event["args"].get("name")) for event in named}


def _stated(name: object) -> dict[str, int]:
    return {kind.lower(): int(number) for kind, number in _PLACE.findall(str(name))}
