# Everything that is checked, by name. `make install` first; all else runs in .venv.

PYTHON = .venv/bin/python

.PHONY: install test lint slow long vscode editors llama-server real cluster-packages cluster bench quality plots train lock sbom

install:
	python3 -m venv .venv
	$(PYTHON) -m pip install -q -c constraints.txt -e '.[test]' -e models/coder -e models/small

test:
	$(PYTHON) -m pytest

lint:
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	cd typings && ../$(dir $(PYTHON))lint-imports --no-cache ../pyproject.toml  # there the import names are folders
	for platform in linux darwin win32; do $(PYTHON) -m mypy --platform $$platform -p caesura || exit 1; done

slow:  # minutes; the last lines say which tests were skipped, and what they need
	$(PYTHON) -m pytest -m slow -rs

long:  # hours: kills, races, damaged models and orders of events at their full counts; then mutants
	$(PYTHON) -m pip install -q -c constraints.txt -e '.[test,long]'
	$(PYTHON) -m pytest -m long
	$(PYTHON) tests/support/processes/mutation.py

vscode:  # build the extension with Node and put it into VS Code; CODE=codium for another of its kind
	cd editors/vscode && npm ci --no-audit --no-fund --loglevel=error && npm run package
	@if command -v $(or $(CODE),code) >/dev/null; \
	then $(or $(CODE),code) --install-extension editors/vscode/caesura.vsix --force; \
	else echo "$(or $(CODE),code) is not on PATH. The extension lies at editors/vscode/caesura.vsix; install it by the command" \
	"'Extensions: Install from VSIX...' of VS Code, or run: make vscode CODE=/path/to/code"; fi

editors:  # into .editors, on Debian; `make real` takes those, else what is on PATH
	$(PYTHON) -m pip install -q -c constraints.txt -e '.[test,real]'
	PATH="$(CURDIR)/.venv/bin:$$PATH" tests/real/editors.sh .editors

llama-server:  # with the weights of `coder`, into a cache of the user's; a quarter of an hour once
	tests/real/backends/llama_server.sh

real:  # the shipped model in real processes and real editors; the browser is the machine's Chromium
	$(PYTHON) -m pip install -q -c constraints.txt -e '.[test,real]'
	$(PYTHON) -m pytest -m real -rs

cluster-packages:
	$(PYTHON) -m pip install -q -c constraints.txt -e '.[test,cluster]'

cluster: cluster-packages  # a door, real gRPC, and a Ray Serve with two replicas of a tiny model
	$(PYTHON) -m pytest -m cluster -rs

bench:
	$(PYTHON) bench/latency.py
	$(PYTHON) bench/simulator.py
	$(PYTHON) bench/kept.py

quality:  # make quality DATA=folder-of-HumanEval-Infilling [MORE='--santa FILE --held-out FILE --peers FOLDER --docs']
	$(PYTHON) bench/quality.py --data '$(DATA)' $(MORE)

plots:  # draw docs/pictures from bench/results, after a measurement
	$(PYTHON) bench/plots.py

train:  # make train MODEL=folder CORPUS=folder RUN=folder [MINUTES=60]; goes on where RUN left off
	$(PYTHON) training/train.py --model '$(MODEL)' --corpus '$(CORPUS)' --run '$(RUN)' --minutes $(or $(MINUTES),60)

lock:  # requirements.lock again, from pyproject.toml and constraints.txt
	$(PYTHON) -m pip install -q uv
	sed -n '1,/^$$/{/^#/p}' requirements.lock > requirements.new
	$(PYTHON) -m uv pip compile -q pyproject.toml -c constraints.txt --universal --python-version 3.11 --generate-hashes \
	    --no-annotate --no-header >> requirements.new
	mv requirements.new requirements.lock

sbom:  # sbom.json again, from an installation of requirements.lock in a virtual environment of its own
	python3 -m venv .sbom
	.sbom/bin/pip install -q --require-hashes -r requirements.lock
	$(PYTHON) -m pip install -q cyclonedx-bom
	$(PYTHON) -m cyclonedx_py environment .sbom --pyproject pyproject.toml --output-reproducible | \
	    $(PYTHON) .ci/sbom.py > sbom.json
	rm -r .sbom
