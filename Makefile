# Bonobot from a fresh clone: only make and Python >= 3.11 are needed. `make` explains itself.

PORT ?= 8000
HOST ?= 127.0.0.1
VENV ?= .venv
ARGS ?=
# Processes of the suite, and seconds after which a test that hangs is named, so that the others go on.
TEST_PROCESSES ?= 3
TEST_TIMEOUT ?= 300

# What a container image has beside the core: all that a deployment may need, without the demo.
IMAGE_EXTRAS := postgres redis otel anthropic bedrock google oauth
COMPILE = UV_CUSTOM_COMPILE_COMMAND="make lock" "$(VENV)/bin/uv" pip compile pyproject.toml --universal \
  --generate-hashes --python-version 3.11 --quiet

# Everything runs as modules of the environment's Python, so that a moved folder keeps working.
PY := $(VENV)/bin/python
# pip installs uv, with the digests of the lock; uv installs everything else in a tenth of pip's time.
PIP = "$(PY)" -m pip install --quiet --disable-pip-version-check
UV = "$(VENV)/bin/uv" pip install --quiet --python "$(PY)"
# The project itself: its build needs only what the lock has.
PROJECT := --no-deps --no-build-isolation --editable .
INSTALLED := $(VENV)/.installed

# What a child process has compiled, the next one need not.
unexport PYTHONDONTWRITEBYTECODE

PYTEST = "$(PY)" -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder --timeout $(TEST_TIMEOUT)
# The Python files that differ from the last commit; without git, all of them.
CHANGED = $(or $(shell git ls-files --modified --others --exclude-standard -- '*.py' 2>/dev/null \
  | while read -r file; do [ ! -e "$$file" ] || echo "$$file"; done),.)

# The first Python that is new enough and can make environments; PYTHON=... overrides the search. The system's is first:
# distributions build it with profile-guided optimization, which makes the product a fifth faster than pyenv's builds.
define FIND_PYTHON
if [ -n "$(PYTHON)" ]; then candidates="$(PYTHON)"; \
else candidates="/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python"; fi; \
found=""; \
for candidate in $$candidates; do \
  if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
    found="$$candidate"; break; \
  fi; \
done; \
if [ -z "$$found" ]; then \
  echo "Bonobot needs Python 3.11 or newer with the venv module; tried: $$candidates." >&2; \
  echo "Install one (Debian, Ubuntu: apt install python3 python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2; \
  exit 1; \
fi
endef

# Checks read the project only: what they would create goes to a folder that is thrown away.
define IN_SCRATCH
set -e; scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; export BONOBOT_VAR="$$scratch";
endef

.DEFAULT_GOAL := help
.PHONY: help install run quick test repeat coverage lint fmt messages docs diagrams screenshots bench drill extras fuzz conformance lock clean
.DELETE_ON_ERROR:

help: ## Show this list
	@printf 'Bonobot\n\n'
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nVariables: PORT=%s HOST=%s BONOBOT_VAR=var PYTHON=python3.12 ARGS="..."\n' '$(PORT)' '$(HOST)'

install: $(INSTALLED) ## Build or refresh .venv from requirements.lock

$(INSTALLED): requirements.lock pyproject.toml
	@$(FIND_PYTHON); \
	"$(PY)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	  || { echo "Making $(VENV) with $$($$found --version) ($$found)"; rm -rf "$(VENV)"; "$$found" -m venv "$(VENV)"; }
	@echo "Installing requirements.lock"
	@sed -n '/^uv==/,/# via/p' requirements.lock >"$(VENV)/uv.lock"
	@{ $(PIP) --require-hashes -r "$(VENV)/uv.lock" && $(UV) --require-hashes -r requirements.lock \
	  && $(UV) $(PROJECT); } \
	  || { echo "uv can't install it here: pip does, which takes longer"; \
	  $(PIP) --require-hashes -r requirements.lock && $(PIP) $(PROJECT); }
	@# Keeps the bytecode of what every command imports: shells with PYTHONDONTWRITEBYTECODE never would.
	@$(IN_SCRATCH) DATABASE_URL= REDIS_URL= "$(PY)" -m bonobot mcp list >/dev/null 2>&1 || :
	@touch "$@"

run: $(INSTALLED) ## Start web and worker; PORT=8000, BONOBOT_VAR=var
	@exec "$(PY)" -m bonobot up --host "$(HOST)" --port "$(PORT)" $(ARGS)

# Its tests only compute, so more processes than cores would only collect them once more.
quick: TEST_PROCESSES = $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
quick: $(INSTALLED) ## Check a change before a commit, in at most 90 s: lint, types, the tests without processes
	@"$(PY)" -m ruff check --quiet --force-exclude $(CHANGED)
	@"$(PY)" -m ruff format --check --quiet --force-exclude $(CHANGED)
	@# mypy uses one processor, so the tests run meanwhile.
	@log=$$(mktemp); "$(PY)" -m mypy --no-error-summary >"$$log" 2>&1 & types=$$!; \
	trap 'kill $$types 2>/dev/null || :; rm -f "$$log"' EXIT; \
	$(PYTEST) --quick $(ARGS); status=$$?; \
	wait $$types || status=1; cat "$$log"; exit $$status

test: $(INSTALLED) ## Run the suite; ARGS="-n0 -k words" narrows it, in one process; TEST_SUITE=whole adds builds
	@$(PYTEST) $(ARGS)

repeat: $(INSTALLED) ## Run the suite ten times under load and list what failed; ARGS="--runs 3 --load 0"
	@"$(PY)" -m tests.repeat $(ARGS)

# At least this much of the branches where a fault lets somebody in or loses something.
CORE := agents/calls agents/policies agents/sessions agents/gateway mcp_servers/client
LEAST_COVERED := 95

coverage: $(INSTALLED) ## Run the suite and measure the branches of the core; fails below 95 %
	@TEST_SUITE=whole $(PYTEST) \
	  $(foreach package,$(CORE),--cov=$(package)) --cov-branch --cov-report= $(ARGS)
	@status=0; for package in $(CORE); do printf '\n%s\n' "$$package"; \
	  "$(PY)" -m coverage report --include="$$package/*" --fail-under=$(LEAST_COVERED) || status=1; \
	done; exit $$status

lint: $(INSTALLED) ## Check style, types, migrations and the system checks
	"$(PY)" -m ruff check .
	"$(PY)" -m ruff format --check .
	"$(PY)" -m djlint templates --check --quiet || "$(PY)" -m djlint templates --check
	"$(PY)" -m mypy
	@$(IN_SCRATCH) "$(PY)" -m bonobot makemigrations --check --dry-run
	@$(IN_SCRATCH) "$(PY)" -m bonobot check --fail-level WARNING

fmt: $(INSTALLED) ## Format, sort imports and apply the safe fixes
	"$(PY)" -m ruff check --fix .
	"$(PY)" -m ruff format .
	@# It exits with 1 if it changed a file; the check fails if a file is still not as it should be.
	"$(PY)" -m djlint templates --reformat --quiet || "$(PY)" -m djlint templates --check --quiet

messages: $(INSTALLED) ## Update the German catalog from the sources and list the untranslated messages
	"$(PY)" -m tests.translation_catalog

docs: $(INSTALLED) ## Build the documentation's site into site/, strictly; ARGS=serve serves it
	@$(IN_SCRATCH) NO_MKDOCS_2_WARNING=1 "$(PY)" -m mkdocs $(or $(ARGS),build)

screenshots: $(INSTALLED) ## Retake the screenshots of README.md and the documentation from the demo
	@"$(PY)" -m docs.making.screenshots

diagrams: $(INSTALLED) ## Draw the Mermaid diagrams of the documentation's site; needs npm and Chromium
	@"$(PY)" -m docs.making.diagrams

bench: $(INSTALLED) ## Measure what the documentation promises
	@"$(PY)" -m pytest benchmarks/bench_*.py -q -s $(ARGS)

fuzz: $(INSTALLED) ## Search for new failing examples: of properties, and of REST with Schemathesis; takes long
	@TEST_FUZZING=whole $(PYTEST) --timeout 0 -m hypothesis $(ARGS)
	@TEST_FUZZING=whole TEST_SUITE=whole "$(PY)" -m pytest -n0 tests/bonobot/test_api_schemathesis.py $(ARGS)

drill: $(INSTALLED) ## Kill one part of a fleet after the other, under load (root, ip, nginx, PostgreSQL, Redis)
	@"$(PY)" -m tests.drill

extras: $(INSTALLED) ## Try the wheel with each extra alone, from an index; ARGS="oauth otel", DATABASE_URL, REDIS_URL
	@"$(PY)" -m tests.extras $(ARGS)

conformance: $(INSTALLED) ## Run the official MCP conformance suite, both roles
	@TEST_REQUIRES=npm TEST_CONFORMANCE=whole "$(PY)" -m pytest tests/conformance $(ARGS)

lock: $(INSTALLED) ## Write the locks from pyproject.toml
	$(COMPILE) --all-extras --group dev --output-file requirements.lock $(ARGS)
	$(COMPILE) $(IMAGE_EXTRAS:%=--extra %) --constraint requirements.lock --output-file deploy/requirements.lock $(ARGS)
	echo 'hatchling' | UV_CUSTOM_COMPILE_COMMAND="make lock" "$(VENV)/bin/uv" pip compile - --constraint requirements.lock \
	  --universal --generate-hashes --python-version 3.11 --no-annotate --quiet --output-file deploy/build.lock $(ARGS)

clean: ## Remove .venv and caches; what is under var/ stays
	rm -rf "$(VENV)" .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build dist
	find . -name __pycache__ -type d -not -path './var/*' -not -path './.git/*' -prune -exec rm -rf {} +
