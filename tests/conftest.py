"""Paths, the command line, golden files and fixtures that the tests share."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import itertools
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import analyze
from analyzer.reading.formats import native

if TYPE_CHECKING:
    from selenium import webdriver
    from selenium.webdriver.support.wait import WebDriverWait

# These modules assert, too; pytest shows what differs.
pytest.register_assert_rewrite("answers", "system_laws")

# Processes that this one starts, and its siblings, read the bytecode that it writes.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

_numbers = itertools.count()

REPO = Path(__file__).resolve().parent.parent
SHARED = REPO.parent / "shared" / "data"

#: Whether to try all recorded files and examples (`make fuzz`), not only a quick part.
THOROUGH = "FUZZ_COUNT" in os.environ


def few(n: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a test: the suite tries the first n, `make fuzz` all."""
    of_each = [one if type(one) is tuple else (one,) for one in values]
    return [pytest.param(*one, marks=() if i < n else pytest.mark.fuzz) for i, one in enumerate(of_each)]


def examples(n: int) -> int:
    """Number of examples of a property to try: all n in `make fuzz`, else a quarter."""
    return n if THOROUGH else n // 4


# A busy machine must not fail a test. The suite tries the same examples each time; `make fuzz` tries others,
# four times as many.
settings.register_profile("other", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("other"), derandomize=True, max_examples=examples(100))
settings.load_profile("same")

_CHROMIUM_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-gpu",  # a software GPU that puts each frame together takes as long as all else
    "--window-size=1280,900",
)


def run_cli(*args: object) -> tuple[int, str, str]:
    """Run `analyze.py` with `args` in this process; return its exit code, stdout and stderr."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _fresh_logging():
        try:
            code = analyze.main([str(arg) for arg in args])
        except SystemExit as end:  # argparse: --help, or a wrong command line
            code = end.code if isinstance(end.code, int) else 1
        out.flush()
    return code, out.buffer.getvalue().decode(), err.getvalue()


def ask(*words: object) -> Any:
    """Return the JSON answer to a command that succeeds."""
    code, out, err = run_cli(*words, "--format", "json")
    assert code == 0, err
    return json.loads(out)


def is_alive(pid: int) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def _fresh_logging() -> Iterator[None]:
    """Let `analyze.main` set up logging as in a new process: on the standard error of this moment."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = []
    try:
        yield
    finally:
        root.handlers, root.level = handlers, level


def pytest_configure(config: pytest.Config) -> None:
    """Let every other process begin with the last tests: it finds compiled what others began with."""
    if config.args == ["tests"] and int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 2:
        config.args = [str(path) for path in sorted(REPO.glob("tests/**/test_*.py"), reverse=True)]
    gc.disable()  # what is collected stays: each look for cycles among it takes 0.2 s


def pytest_collection_finish() -> None:
    """Look for cycles again, but not among the tests."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `slow` what reads recorded traces, or starts a browser or a cluster.

    Tests in a browser come first: of several processes one begins there, and only that starts a browser.
    """
    items.sort(key=lambda item: ("browser" not in getattr(item, "fixturenames", ()), item.path))
    for item in items:
        if {"shared_data", "browser", "two_workers"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker("slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep neighbouring tests in one process, which shares what they read; idle processes take some."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/")


@pytest.fixture(autouse=True)
def _any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print as into a pipe: what runs the tests may say how wide its own terminal is."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(params=["python", "native"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read trace files by the decoder in Python, then by the scanner in C."""
    monkeypatch.setenv("ANALYZE_NATIVE", str(int(request.param == "native")))
    if request.param == "native" and native.library() is None:
        pytest.skip("no C compiler here")
    return str(request.param)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The directory of recorded traces; the test is skipped where there is none."""
    if not SHARED.is_dir():
        pytest.skip(f"no recorded traces at {SHARED}")
    return SHARED


@pytest.fixture
def path(request: pytest.FixtureRequest, job: str) -> Path:
    """The directory of the `job` that a test names: an example's by its name alone, else a recorded one's."""
    return request.getfixturevalue("shared_data") / job if "/" in job else REPO / "examples" / job


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """A headless Chromium; the test is skipped where there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium with chromedriver here")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in _CHROMIUM_FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:  # it leaves much behind
        service = Service(driver, env={**os.environ, "TMPDIR": scratch})
        started = webdriver.Chrome(options=options, service=service)
        yield started
        started.quit()


@contextlib.contextmanager
def small_window(browser: webdriver.Chrome) -> Iterator[None]:
    """Give pages that draw every pixel in software, again and again, few of them."""
    size = browser.get_window_size()
    browser.set_window_size(400, 300)
    yield
    browser.set_window_size(size["width"], size["height"])


def waiting(browser: webdriver.Chrome, seconds: float = 30) -> WebDriverWait[webdriver.Chrome]:
    """Wait for something in a page and look often; selenium's default is twice a second."""
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(browser, seconds, poll_frequency=0.02)


def open_page(browser: webdriver.Chrome, path: Path) -> list[str]:
    """Load a page that the HTML face wrote; return the browser's errors once it is built."""
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # what earlier pages said
    browser.get(path.resolve().as_uri())
    waiting(browser).until(lambda page: page.execute_script("return document.documentElement.dataset.ready"))
    entries = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a new directory; pytest's own looks through those of all tests before for a free number."""
    return tmp_path_factory.mktemp(f"test{next(_numbers)}", numbered=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with ``tests/golden/<name>``; `--update-golden` rewrites the file instead."""

    def check(name: str, text: str) -> None:
        path = REPO / "tests" / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The functions in C, built; the test is skipped where there is no compiler."""
    loaded = native.library()
    if loaded is None:
        pytest.skip("no C compiler here")
    return loaded
