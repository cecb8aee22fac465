"""How large a page is, how soon it is drawn and how smoothly its timeline moves, in headless Chromium.

Per job and option: the size of the page; from the start of its loading to the first paint and to when all is
drawn, in a browser that was just started, the best of three; frames a second while the timeline is panned
for two seconds. Beside each the CPU time of the page's own thread, which other work on the machine changes
less: until all is drawn, and for a frame. Without a job two are made: 16 ranks with 10,000 operations a step
together, and 1,024 ranks. Pages (``.html``) in place of jobs are measured as they are.

    python3 -m benchmarks.pages [JOB or PAGE ...] [--option critical diagnose]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import python, run, table
from benchmarks.ranks import Job, write

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

_REPEAT = 3
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--window-size=1440,900",
)
#: Waits until the browser has drawn a frame after the page was built; returns both moments (ms).
_PAINTED = """
const done = arguments[arguments.length - 1];
const poll = () => {
  const [paint] = performance.getEntriesByName("first-contentful-paint");
  if (!paint || !document.documentElement.dataset.ready) return setTimeout(poll, 5);
  requestAnimationFrame(() => requestAnimationFrame(() => done([paint.startTime, window.builtAt ?? 0])));
};
poll();
"""
#: Pans a zoomed timeline to and fro; returns frames and seconds, or null where the page has no timeline.
_PANNED = """
const done = arguments[arguments.length - 1];
const canvas = document.querySelector(".board canvas");
if (!canvas) done(null);
else {
  canvas.scrollIntoView({ block: "center" });
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key }));
  press("+"); press("+"); press("+");
  let frames = 0;
  const begin = performance.now();
  const frame = () => {
    const passed = performance.now() - begin;
    if (passed > 2000) return done([frames, passed / 1000]);
    press(frames % 20 < 10 ? "ArrowLeft" : "ArrowRight");
    frames += 1;
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}
"""
#: Notes when the page says that it is built.
_WATCH = """
new MutationObserver(() => { window.builtAt ??= performance.now(); })
  .observe(document, { subtree: true, attributes: true, attributeFilter: ["data-ready"] });
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """A page as a browser drew it: its times and sizes."""

    paint_ms: float
    built_ms: float
    cpu_ms: float
    frames_a_second: float | None
    cpu_ms_a_frame: float | None


def show(page: Path) -> Shown:
    """Load a page in a new browser and pan its first timeline."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in _FLAGS:
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        browser.set_script_timeout(120)
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _WATCH})
        browser.execute_cdp_cmd("Performance.enable", {})
        browser.get(page.resolve().as_uri())
        paint, built = browser.execute_async_script(_PAINTED)
        cpu_ms = _cpu_ms(browser)
        panned = browser.execute_async_script(_PANNED)
        if panned is None:
            return Shown(paint, built, cpu_ms, None, None)
        frames, seconds = panned
        return Shown(paint, built, cpu_ms, frames / seconds, (_cpu_ms(browser) - cpu_ms) / frames)
    finally:
        browser.quit()


def _cpu_ms(browser: Chrome) -> float:
    """Return the CPU time of the page's main thread so far."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return 1000 * next(float(metric["value"]) for metric in metrics if metric["name"] == "ThreadTime")


def measured(jobs: Sequence[Path], options: Sequence[str], scratch: Path) -> Iterator[list[str]]:
    """Yield a row for each job and option."""
    for job in jobs:
        for option in options if job.suffix != ".html" else [""]:
            page = job
            if option:
                page = scratch / f"{job.name}-{option}.html"
                run([python(), "analyze.py", "--option", option, "--path", str(job), "--html", str(page)])
            found = [show(page) for _ in range(_REPEAT)]
            frames = [one.frames_a_second for one in found if one.frames_a_second is not None]
            cpu = [one.cpu_ms_a_frame for one in found if one.cpu_ms_a_frame is not None]
            yield [
                f"{option} {job.name}".strip(),
                f"{page.stat().st_size / 1e6:.2f}",
                f"{min(one.paint_ms for one in found):.0f}",
                f"{min(one.built_ms for one in found):.0f}",
                f"{min(one.cpu_ms for one in found):.0f}",
                f"{max(frames):.0f}" if frames else "–",
                f"{min(cpu):.1f}" if cpu else "–",
            ]


def made(scratch: Path) -> list[Path]:
    """Write two jobs: one of few ranks, and one of 1,024."""
    sizes = ((16, 1_500_000), (1024, 400_000))
    return [write(scratch / f"{n} ranks", Job(n, "host", 5, 0.2), n_bytes) for n, n_bytes in sizes]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("jobs", nargs="*", type=Path, metavar="JOB")
    parser.add_argument("--option", nargs="+", default=["critical", "diagnose"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        jobs = args.jobs or made(Path(scratch))
        header = ["page", "MB", "first paint (ms)", "built (ms)", "CPU (ms)", "frames/s", "CPU a frame (ms)"]
        print(table([header, *measured(jobs, args.option, Path(scratch))]))


if __name__ == "__main__":
    main()
