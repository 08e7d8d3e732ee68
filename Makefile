# One door for commands: people and CI call the same targets. `make` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SECONDS ?= 600
PYTEST_ARGS ?=
PROCESSES ?= 2
# Build of torch: torch-cpu, or torch-cuda for GPUs.
TORCH ?= torch-cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Images for containers often set this. Then each of the tests' many processes compiles the repository again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-fast lint style audit fuzz proto docs lock sbom dist clean
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# Nothing is installed that a lock file does not name with its hash: build tools first.
INSTALL := $(PIP) install --quiet --require-hashes --no-deps --no-build-isolation --requirement
LOCKS := requirements

# Each stamp is younger than what it was made from, so that a second `make` installs nothing.
$(VENV)/.installed: pyproject.toml $(LOCKS)/build.txt $(LOCKS)/$(TORCH).txt $(LOCKS)/runtime.txt $(LOCKS)/kenlm.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and "Python 3.11 to 3.14 is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) $(LOCKS)/build.txt
	$(INSTALL) $(LOCKS)/$(TORCH).txt
	$(INSTALL) $(LOCKS)/runtime.txt
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	$(PIP) check
	@$(INSTALL) $(LOCKS)/kenlm.txt > $(VENV)/kenlm.log 2>&1 || true
	@$(BIN)/python -c 'import kenlm' 2> /dev/null || echo 'Going on without KenLM, which only its own binary model' \
		'files and some tests need. It needs Python below 3.13, a C++ compiler and cmake; see $(VENV)/kenlm.log.'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed $(LOCKS)/dev.txt
	$(INSTALL) $(LOCKS)/dev.txt
	$(PIP) check
	touch $@

$(VENV)/.installed-fuzz: $(VENV)/.installed $(LOCKS)/fuzz.txt
	$(INSTALL) $(LOCKS)/fuzz.txt
	touch $@

demo: $(VENV)/.installed  ## start a server on the starter models, send it the demo lists, show what changed
	$(BIN)/python demo/run.py

# mypy takes a minute of one core, while the tests often wait for time to pass.
test: style  ## set up, check style, architecture, protocol and types, and run every test
	@echo '$(BIN)/mypy, while the tests run'; $(BIN)/mypy > $(VENV)/mypy.log 2>&1 & types=$$!; \
		$(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(PYTEST_ARGS); tests=$$?; \
		wait $$types; types=$$?; cat $(VENV)/mypy.log; test $$types = 0 && exit $$tests

test-fast: $(VENV)/.installed-dev  ## the fast loop: no lint, no slow tests, none that need data; under a minute
	$(BIN)/python -m pytest -m "not slow and not data and not gpu" \
		--hypothesis-profile=fast -n $(PROCESSES) $(PYTEST_ARGS)

lint: style  ## style, architecture, protocol, locks, images and types
	$(BIN)/mypy

style: $(VENV)/.installed-dev  ## what lint checks, without types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/published.binpb
	$(BIN)/python proto/generate.py --check
	$(BIN)/python -m tools.release.locks --check
	$(BIN)/python -m tools.release.images --check

audit: $(VENV)/.installed-dev  ## check installed packages for known vulnerabilities
	.ci/audit $(BIN)/python

fuzz: $(VENV)/.installed-fuzz  ## property tests with random examples; look for bytes that break a reader, SECONDS=600 for each
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile=search $(PYTEST_ARGS)
	$(BIN)/python -m tools.fuzz.bombs
	$(BIN)/python -m tools.fuzz.readers --all --seconds $(SECONDS) --folder runs/fuzz

proto: $(VENV)/.installed-dev  ## generate rescorer/protocol/v1 from proto/
	$(BIN)/python proto/generate.py

docs: $(VENV)/.installed-dev  ## write the generated pages in docs/reference and build the site, strictly, into site/
	$(BIN)/python -m tools.docs
	$(BIN)/python -m mkdocs build --strict --quiet

lock: $(VENV)/.installed-dev  ## write requirements/*.txt from pyproject.toml; UPGRADE=1 takes the newest versions
	$(BIN)/python -m tools.release.locks $(if $(UPGRADE),--upgrade)

sbom: $(VENV)/.installed-dev  ## write the bill of materials, dist/rescorer.cdx.json (CycloneDX)
	$(BIN)/python -m tools.release.sbom dist/rescorer.cdx.json

dist: sbom  ## build the wheel and the source distribution, with the locked build tools, into dist/
	$(BIN)/python -m build --no-isolation --outdir dist

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) dist site .pytest_cache .hypothesis .ruff_cache .mypy_cache
