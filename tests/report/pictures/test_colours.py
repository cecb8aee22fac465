"""Colours: told apart by all eyes, seen on both pages, and one meaning each."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from analyzer.report.pictures import colours
from conftest import REPO

_ALL = tuple(colours.PALETTE.values())
_DARK_INK = "#e6e9ee"

# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# IEEE TVCG 15(6), 2009, severity 1.0: what each deficiency makes of linear RGB.
_DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
# IEC 61966-2-1 (sRGB) to CIE XYZ under D65.
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> tuple[float, float, float]:
    """CIE 15: L*, a*, b* of linear RGB."""
    ratios = _XYZ @ np.clip(rgb, 0, 1) / _WHITE
    x, y, z = np.where(ratios > 216 / 24389, np.cbrt(ratios), (24389 / 27 * ratios + 16) / 116)
    return float(116 * y - 16), float(500 * (x - y)), float(200 * (y - z))


def difference(one: tuple[float, float, float], other: tuple[float, float, float]) -> float:
    """CIEDE2000, as Sharma, Wu and Dalal write it (Color Research and Application 30(1), 2005)."""
    (l1, a1, b1), (l2, a2, b2) = one, other
    mean = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(mean**7 / (mean**7 + 25**7)))
    a1, a2 = (1 + g) * a1, (1 + g) * a2
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = (math.degrees(math.atan2(b, a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    middle = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    dl, dc, dh = l2 - l1, c2 - c1, 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    light, chroma = (l1 + l2) / 2, (c1 + c2) / 2

    def cosine(times: int, shift: float) -> float:
        return math.cos(math.radians(times * middle + shift))

    t = 1 - 0.17 * cosine(1, -30) + 0.24 * cosine(2, 0) + 0.32 * cosine(3, 6) - 0.2 * cosine(4, -63)
    sl = 1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2)
    sc, sh = 1 + 0.045 * chroma, 1 + 0.015 * chroma * t
    rc = 2 * math.sqrt(chroma**7 / (chroma**7 + 25**7))
    rt = -math.sin(math.radians(60 * math.exp(-(((middle - 275) / 25) ** 2)))) * rc
    dl, dc, dh = dl / sl, dc / sc, dh / sh
    return math.sqrt(dl**2 + dc**2 + dh**2 + rt * dc * dh)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((50.0, 2.6772, -79.7751), (50.0, 0.0, -82.7485), 2.0425),
        ((50.0, 0.0, 0.0), (50.0, -1.0, 2.0), 2.3669),
        ((50.0, 2.5, 0.0), (73.0, 25.0, -18.0), 27.1492),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_the_difference_is_that_of_the_published_pairs(
    one: tuple[float, float, float], other: tuple[float, float, float], expected: float
) -> None:
    assert difference(one, other) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("eyes", _DEFICIENCIES)
def test_any_two_colours_are_told_apart(eyes: str) -> None:
    inks = (colours.INK, _DARK_INK)  # of the critical path, which lies on the others
    seen = {colour: lab(_DEFICIENCIES[eyes] @ linear(colour)) for colour in (*_ALL, *inks)}
    closest = min(difference(seen[a], seen[b]) for a, b in itertools.combinations(_ALL, 2))
    assert closest >= 10
    assert min(difference(seen[ink], seen[colour]) for ink in inks for colour in _ALL) >= 15


@pytest.mark.parametrize("colour", _ALL)
def test_every_colour_and_its_words_stand_out_on_either_page(colour: str) -> None:
    """WCAG 2.2: (L1 + 0.05) / (L2 + 0.05), L the luminance."""
    lightness = float(_XYZ[1] @ linear(colour)) + 0.05
    dark = float(_XYZ[1] @ linear("#14171c")) + 0.05
    assert lightness / dark >= 3
    assert 1.05 / lightness >= 3
    assert (colours.ink_on(colour) == "#000000") == (lightness / 0.05 > 1.05 / lightness)


def test_the_pages_have_the_measured_colours() -> None:
    lines = {*map(str.strip, (REPO / "analyzer/report/assets/page.css").read_text().splitlines())}
    assert {"--paper: #14171c;", f"--ink: {_DARK_INK};", f"--ink: {colours.INK};"} <= lines


@pytest.mark.parametrize(
    ("name", "like"),
    [("event/forward", "FW"), ("event/backward", "BW"), ("NCCL_ALLREDUCE", "Comm"),
     ("optimizer.step", "STEP"), ("data/load", "I/O"), ("load_batch", "I/O")],
)  # fmt: skip
def test_a_role_has_one_colour_whatever_it_is_called(name: str, like: str) -> None:
    assert colours.of(name) == colours.of(like)


def test_a_word_within_another_word_means_nothing() -> None:
    assert colours.of("RawLoadedExecutable::Execute") != colours.of("I/O")


def test_the_host_has_one_colour_that_is_of_no_phase_and_no_wait() -> None:
    roles = ("FW", "BW", "STEP", "I/O", "kernel", "Comm", "wait", "gap", "rest", "gpu_memcpy")
    hosts = ("cpu_op", "user_annotation", "annotation", "cuda_runtime", "cuda_driver", "python", "callback")
    assert len({colours.of(role) for role in roles}) == len(roles)
    assert {colours.of(name) for name in hosts}.isdisjoint(map(colours.of, roles))
    assert len({colours.of(name) for name in hosts}) == 1


def test_names_without_a_meaning_differ_while_colours_last() -> None:
    names = [f"run {i}" for i in range(12)]
    assert len(set(colours.assign(names).values())) == 12


def test_names_of_one_meaning_differ_and_take_no_other_meaning() -> None:
    names = ["PUSH", "REDUCE", "COPYD2H", "COPYH2D", "I/O", "cpu_op", "cuda_runtime"]
    shades = colours.assign(names)
    assert [*shades] == names
    assert len(set(shades.values())) == len(names)
    for name in ("PUSH", "COPYD2H", "I/O", "cpu_op"):
        assert shades[name] == colours.of(name)


def test_more_names_than_colours_share_the_colour_of_the_rest() -> None:
    shades = [*colours.assign(f"run {i}" for i in range(20)).values()]
    assert set(shades[12:]) == {colours.PALETTE["rest"]}
