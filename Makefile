# make demo   set up and run the demo            make check  linters, types, layers
# make test   set up, check, run every test      make bench  every benchmark
# make accuracy   how often the diagnosis is right, and how often it blames the wrong one
#
# Variables: PYTHON, VENV, CONSTRAINTS and TORCH_INDEX (see scripts/setup_venv.sh), DEMO_ARGS, TEST_ARGS,
# ACCURACY_ARGS.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints/cpu.txt
TORCH_INDEX ?=
DEMO_ARGS ?=
TEST_ARGS ?=
ACCURACY_ARGS ?=
BIN := $(VENV)/bin
SETUP := PYTHON=$(PYTHON) CONSTRAINTS=$(CONSTRAINTS) TORCH_INDEX=$(TORCH_INDEX) scripts/setup_venv.sh $(VENV)
SETUP_INPUTS := pyproject.toml scripts/setup_venv.sh $(CONSTRAINTS)

.PHONY: demo test check bench accuracy clean

demo: $(VENV)/.ready-demo
	$(BIN)/starprof demo --out demo-out $(DEMO_ARGS)

test: check
	@# Pytest's exit code 5: TEST_ARGS selects none of this half.
	$(BIN)/python -m pytest -m "not alone" -n auto --dist worksteal $(TEST_ARGS) || [ $$? -eq 5 ]
	$(BIN)/python -m pytest -m alone $(TEST_ARGS) || [ $$? -eq 5 ]

check: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.ready-dev
	@for f in benchmarks/*.py; do case $$f in */_*) continue;; esac; echo "== $$f"; $(BIN)/python $$f || exit 1; done

accuracy: $(VENV)/.ready-dev
	$(BIN)/python benchmarks/accuracy $(ACCURACY_ARGS)

$(VENV)/.ready-demo: $(SETUP_INPUTS)
	$(SETUP) demo
	@touch $@

$(VENV)/.ready-dev: $(SETUP_INPUTS)
	$(SETUP) dev
	@touch $@ $(VENV)/.ready-demo

clean:
	rm -rf $(VENV) build dist demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find starprof tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
