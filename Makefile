# Every target makes its own .venv on first use; nothing else is needed than python3 (3.11 or newer) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_VENV := .venv-docs
DOCS_INSTALLED := $(DOCS_VENV)/.installed

NEWEST_VENV := .venv-newest

.PHONY: demo test test-shuffled slow newest lint bench bench-peers docs docs-site transcripts models clean

demo: $(INSTALLED)
	$(BIN)/limbeck demo

# Two processes of one thread each (tests/conftest.py): on two cores faster than one process of two threads.
test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadscope

# The same in another order: make test-shuffled SEED=7
SEED ?= 1
test-shuffled: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadscope --shuffle $(SEED)

slow: $(INSTALLED) models
	$(BIN)/python -m pytest -n 2 --dist loadscope -m slow --durations=0

# The default tests with the newest transformers, peft and tokenizers on the pinned torch: what will break next.
newest:
	$(PYTHON) -m venv $(NEWEST_VENV)
	grep -v -i -E '^(transformers|peft|tokenizers|safetensors|huggingface_hub|hf-xet)==' constraints.txt > $(NEWEST_VENV)/constraints.txt
	$(NEWEST_VENV)/bin/python -m pip install --quiet --upgrade --constraint $(NEWEST_VENV)/constraints.txt --editable '.[dev]'
	$(NEWEST_VENV)/bin/python -m pip list | grep -i -E '^(torch|transformers|peft|tokenizers) '
	$(NEWEST_VENV)/bin/python -m pytest -n 2 --dist loadscope

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

# The pages that are made from the code.
docs: $(INSTALLED)
	$(BIN)/python scripts/generate_docs.py

# The output of the commands that the pages show, from running them on the demo's pair (two minutes).
transcripts: $(INSTALLED)
	$(BIN)/python scripts/transcripts.py

# The documentation as a site: build/docs/index.html. It needs nothing of the package, so it has its own small environment.
docs-site: $(DOCS_INSTALLED)
	$(DOCS_VENV)/bin/python -m sphinx -W --keep-going -q -b html docs build/docs

# The real pair that the slow tests and benchmarks use; kept in the user's cache, made once.
models: $(INSTALLED)
	$(BIN)/python scripts/real_models.py

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(DOCS_INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python scripts/extra.py docs | $(DOCS_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --requirement /dev/stdin
	touch $@

clean:
	rm -rf $(VENV) $(NEWEST_VENV) $(DOCS_VENV) build
