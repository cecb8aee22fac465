"""Wrong command lines: each is answered in one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import shlex

import pytest

from conftest import REPO, run_cli

#: What is typed, and the line that comes back, within a directory that has the examples.
DATA = """
whatif lenet bandwith=2
    --set bandwith=2: there is no such edit; did you mean bandwidth=2? --set help lists all
whatif lenet FW=+5
    --set FW=+5: an added time has a unit: +5ms
lenet --json
    unrecognized argument: --json; did you mean --format json?
whatif --bandwidth=2 lenet
    unrecognized argument: --bandwidth=2; did you mean bandwidth=2?
whatif lenet conv1=0.5
    --set conv1=0.5: no operation has the name conv1; did you mean BW.hybridsequential0_conv1, \
FW.hybridsequential0_conv1, BW.hybridsequential0_conv1_relu or one of 33 more?
whatif lenet wk0.rank9.FW=2
    --set wk0.rank9.FW=2: no such rank; there are wk0.rank0, wk1.rank0
whatif lenet bandwidth=0
    --set bandwidth=0: a ratio must be above 0 (1 changes nothing), from 1/1,000,000 to 1,000,000
whatif lenet straggler=nobody
    --set straggler=nobody: straggler is none, even, mean or each_step
whatif lenet drop=nothing
    --set drop=nothing: no operation has the name nothing; --set help lists all
whatif lenet bandwidth
    bandwidth: no such file, and an edit is name=value, such as bandwidth=2
whatif lenet --output x.json
    --output needs an edit: analyze.py whatif JOB bandwidth=2 --output …
whatif bandwidth=2
    no path is given, and BYTEPS_TRACE_DIR is not set; e.g. analyze.py whatif JOB bandwidth=2
replay lenet --set bandwidth=2
    --set belongs to whatif: analyze.py whatif JOB bandwidth=2
version
    version: no such file or directory, nor an option; did you mean --version?
lenet/worker_0/0/dag.gml
    ! lenet/worker_0/0/dag.gml: a DAG, not a trace; give the trace or the GPU's directory
combine lenet lenet/worker_0
    lenet/worker_0/0/bps_trace_final.json.gz: given twice
whatif lenet bandwidth=10Gbit/s
    ! bandwidth: the bytes of the transfers are not recorded; give a ratio (bandwidth=2)
statistic lenet --filter Comm.hybridsequential0_conv1_bais
    ! --filter Comm.hybridsequential0_conv1_bais: no communication in this job has that name; did you mean \
Comm.hybridsequential0_conv1_bias, Comm.hybridsequential0_conv0_bias or \
Comm.hybridsequential0_conv1_bias.PUSH?
--option nonsense --path lenet
    --option/--type: 'nonsense' is not an option; there are diagnose, statistic, graph, combine, compare, \
critical, replay, collect, 3dcompare (see --help)
--path
    --path: expected at least one argument (see --help)
statistic
    no path is given, and BYTEPS_TRACE_DIR is not set; e.g. \
analyze.py statistic examples/lenet --sort --head 20
--html lenet
    --html lenet: is taken as the value of --html; write paths before it
statistic lenet --rank_by gpu
    --rank_by gpu: give pid, tid or args.KEY, a key of the events' args
statistic lenet --cluster nowhere
    --cluster nowhere: neither tcp://host:port nor a scheduler file (*.json)
critical lenet --step 99
    ! --step 99: no such step on every rank; there are 10–20
replay lenet --delay_ratio 2
    --delay_ratio has no effect with a plain --option replay
combine lenet --output -
    --output -: nothing goes to standard output but the answer; name a file
statistic missing --save no/x.json
    ! --save no/x.json: cannot be written: there is no directory HERE/no
statistic lenet --sub_option collectives --peak 50
    --peak was removed: compare the column bus (GB/s) with your links
collect lenet --clean
    --clean was removed: nothing is kept between runs; analyze.py collect JOB renews each final trace
replay lenet --sub_option theory
    --sub_option: theory was removed: analyze.py whatif JOB bandwidth=10Gbit (see --help)
lenet --brief
    --brief shortens JSON: add --format json
lenet --open
    --open shows a page: add --html
lenet --format parquet
    --format parquet needs --output FILE.parquet
combine lenet --format parquet --output x.parquet
    --format parquet has no effect with --option combine; use --xlsx
statistic lenet --format parquet --output x.csv
    --format parquet --output x.csv: expected a name that ends in .parquet
statistic lenet --output x.json
    --output has an effect only with --format parquet; --html and --xlsx name files
diagnose lenet --picture a.svg
    --picture was removed: --html FILE writes a page with the charts; graph and 3dcompare draw pictures
"""


LINES = [line.strip() for line in DATA.strip().splitlines()]


@pytest.mark.parametrize(("typed", "line"), list(zip(LINES[::2], LINES[1::2], strict=True)))
def test_a_wrong_command_line_is_answered_in_one_line_that_helps(
    typed: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that begins with ``!`` is about what lies there, not about the words: exit code 1."""
    monkeypatch.delenv("BYTEPS_TRACE_DIR", raising=False)
    monkeypatch.chdir(REPO / "examples")
    code = 1 if line.startswith("! ") else 2
    line = line.removeprefix("! ").replace("HERE", str(REPO / "examples"))
    assert run_cli(*shlex.split(typed)) == (code, "", f"analyze.py: error: {line}\n")
