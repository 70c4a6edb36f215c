# Every target makes its own .venv on first use; nothing else is needed than python3 (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test mutants slow lint bench bench-peers docs models clean

demo: $(INSTALLED)
	$(BIN)/limbeck demo

test: $(INSTALLED)
	$(BIN)/python -m pytest

# Small changes to the code that a test ought to notice: which ones does none? Some 20 minutes.
mutants: $(INSTALLED)
	$(BIN)/python scripts/mutants.py

slow: $(INSTALLED) models
	$(BIN)/python -m pytest -m slow --durations=0

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

bench: $(INSTALLED) models bench-peers
	$(BIN)/python benchmarks/vs_trl.py
	$(BIN)/python benchmarks/vs_trl.py --stored --shapes ragged,8x64
	$(BIN)/python benchmarks/rollouts.py
	$(BIN)/python benchmarks/loss.py
	$(BIN)/python benchmarks/scaling.py

# The peers that the benchmarks compare with, in an environment of their own.
bench-peers: $(INSTALLED)
	$(BIN)/python benchmarks/peers.py

docs: $(INSTALLED)
	$(BIN)/python scripts/generate_docs.py

# The real pair that the slow tests and benchmarks use; kept in the user's cache, made once.
models: $(INSTALLED)
	$(BIN)/python scripts/real_models.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
