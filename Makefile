# `make check` is what CI runs; `make check PYTHON=python3.13` on another interpreter.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
MINIMUM = $(VENV)/minimum

.PHONY: check test quick minimum slowest fuzz lint types golden clean

check: test lint types  ## all of it

$(BIN)/pytest: requirements.txt requirements-extras.txt requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -r requirements-dev.txt
	touch $@

test: $(BIN)/pytest  ## the test suite
	$(BIN)/python -m pytest -q -n auto

quick: $(BIN)/pytest  ## what a change needs first, in half a minute: no browser, compiler or cluster
	$(BIN)/python -m pytest -q -n auto -m "not slow and not thorough and not fuzz"

minimum:  ## the same with the oldest versions that the requirements allow; Python 3.10 to 3.12 have them all
	rm -rf $(MINIMUM)
	$(PYTHON) -m venv $(MINIMUM)
	sed -n 's/>=/==/p' requirements.txt requirements-extras.txt > $(MINIMUM)/constraints.txt
	$(MINIMUM)/bin/pip install -q -c $(MINIMUM)/constraints.txt -r requirements-dev.txt
	$(MAKE) quick VENV=$(MINIMUM)

slowest: $(BIN)/pytest  ## the tests that take longest; what takes more than 0.5 s has the marker `slow`
	$(BIN)/python -m pytest -q -n auto --durations=60 --durations-min=0.5

lint: $(BIN)/pytest  ## format, style and contracts of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYTHONPATH=. $(BIN)/lint-imports

types: $(BIN)/pytest  ## static types
	$(BIN)/mypy

golden: $(BIN)/pytest  ## rewrite the golden files; review the difference
	$(BIN)/python -m pytest -q -n auto --update-golden

SEED ?= 1000
COUNT ?= 5000
fuzz: $(BIN)/pytest  ## all recorded files, other damaged files and examples: make fuzz SEED=7 COUNT=5000
	FUZZ_SEED=$(SEED) FUZZ_COUNT=$(COUNT) $(BIN)/python -m pytest -q -n auto \
		-m "hypothesis or thorough or fuzz" --hypothesis-profile other

clean:  ## remove what the targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
