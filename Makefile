# Every target sets up what it needs: a virtual environment in .venv with the tested versions of constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOWEST := .venv-lowest
NEWEST := .venv-newest
TESTS ?= tests
DEMO_RUN ?= runs/demo
SEED ?= 1
HOURS ?= 1
EACH ?= 12

.PHONY: demo test nightly slowest twin faults cluster docs notebooks resolve hashes licenses release lowest newest lint wheel package bench clean help

help:
	@echo "make demo     train DreamerV3 in a MiniGrid of four rooms, in a minute; watch its dreams below the truth"
	@echo "make test     set up and run all tests"
	@echo "make nightly  what make test repeats of no more than one of a kind: algorithms of a base, robots"
	@echo "make slowest  the tests, and which 50 of them take longest (TESTS=tests/run for some of them)"
	@echo "make twin     play features together for an hour, and compare with plain loops (HOURS=8 for a night)"
	@echo "make faults   kill runs and commands, fill disks, damage files of all formats, for half an hour; counts as data"
	@echo "make cluster  the tests of runs on a Ray cluster of this machine, which lose learners, actors and nodes (2 minutes)"
	@echo "make docs     the documentation site, in build/site; open its index.html"
	@echo "make resolve  check that the pins of constraints.txt fit together, with the metadata of PyPI"
	@echo "make hashes   the requirements of the image, with the hashes of PyPI, in deploy/"
	@echo "make licenses the licenses of all dependencies and of programs in them, in build/; no package of the image has copyleft"
	@echo "make release  all checks before a release, and the commands that publish it"
	@echo "make lowest   the tests with the lowest versions that pyproject.toml admits (TESTS=tests/replay for some of them)"
	@echo "make newest   the tests with the newest versions that it admits, of PyTorch too"
	@echo "make lint     ruff, mypy, the import laws and complete types of public names"
	@echo "make wheel    a wheel with the kernels compiled for every processor of this architecture, in dist/"
	@echo "make package  what goes to PyPI, in dist/: the sources and such a wheel, checked by twine and run"
	@echo "make bench    the ten-seed tables of the demo and of CartPole, and the timings (an hour on two cores)"

# The demo needs MiniGrid, and the README's next commands the other two extras; tests and lint need everything.
$(VENV)/.demo: pyproject.toml constraints.txt tools/venv.sh
	tools/venv.sh $(PYTHON) $(VENV) "classic,minigrid,viewer"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt tools/venv.sh
	tools/venv.sh $(PYTHON) $(VENV) "dev"
	@touch $@ $(VENV)/.demo

# Triton, for the tests of GPU kernels, exists for Linux only. It is installed separately: imported
# after Mesa's OpenGL, which bundles another LLVM, it crashes.
# PyTorch's build for GPUs brings its own, and its tests run with all others.
HAS_TRITON = $(BIN)/python -c "import triton" 2>/dev/null
TRITON := $(if $(filter Linux,$(shell uname -s)),$(VENV)/.triton)
$(VENV)/.triton: $(VENV)/.dev
	$(HAS_TRITON) || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt \
		--upgrade --target $(VENV)/triton triton
	@touch $@

# Compiled before any run is timed. The library lies in the user's cache, and the sources are its key.
$(VENV)/.kernels: $(VENV)/.demo $(wildcard src/reverie/kernels/csrc/*.[ch])
	$(BIN)/reverie --version
	@touch $@

demo: $(VENV)/.kernels
	$(BIN)/python tools/demo.py --run $(DEMO_RUN) --seed $(SEED)

ON_TRITON = PYTHONPATH=$(VENV)/triton $(BIN)/python -m pytest -n 2 -k "gpu or triton" \
	--ignore tests/kernels/test_cuda.py tests/kernels

# Tests start hundreds of processes; each would compile the library anew if none may keep the bytecode.
test: export PYTHONDONTWRITEBYTECODE =
test: lint $(VENV)/.kernels $(TRITON)
	$(BIN)/python -m pytest -n 2 --dist worksteal
	$(if $(TRITON),$(HAS_TRITON) || $(ON_TRITON))

nightly: $(VENV)/.dev $(VENV)/.kernels $(TRITON) deploy/requirements.txt
	$(BIN)/python -m pytest -n 2 --dist worksteal -m nightly
	$(if $(TRITON),$(HAS_TRITON) || $(ON_TRITON) -m nightly)

slowest: $(VENV)/.dev $(VENV)/.kernels $(TRITON)
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 50 $(TESTS)
	$(if $(TRITON),$(HAS_TRITON) || $(ON_TRITON) --durations 50)

# Other combinations of features every day, on two cores.
twin: $(VENV)/.kernels
	for part in 0 1; do $(BIN)/python tests/twin --mutants --seconds $$(( $(HOURS) * 3600 )) --seed $$(( 1$$(date +%j) * 1000 + $$part * 500 )) & \
		pids="$$pids $$!"; done; for pid in $$pids; do wait $$pid || failed=1; done; [ -z "$$failed" ]

# Half an hour on two idle cores: a thousand stops and three thousand damaged files, as bench/reliability.json says.
faults: $(VENV)/.kernels
	$(BIN)/python bench/reliability.py --stride 20 --each $(EACH)

# Apart from the others: Ray is large, and its tests lose whole nodes.
cluster: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ray
	$(BIN)/python -m pytest tests/distributed/test_ray.py

# uv alone: the pins are checked before any of them is installed.
$(BIN)/uv: constraints.txt tools/venv.sh
	tools/venv.sh $(PYTHON) $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	@touch $@

resolve: $(BIN)/uv
	$(BIN)/python tools/resolve.py

hashes: deploy/requirements.txt

deploy/requirements.txt: constraints.txt pyproject.toml tools/hashes.py $(BIN)/uv
	$(BIN)/python tools/hashes.py

# The lowest versions of what pyproject.toml names, with the tested PyTorch; pip alone cannot look for the lowest.
$(VENV)/lowest.txt: pyproject.toml constraints.txt $(BIN)/uv
	grep ^torch== constraints.txt > $(VENV)/torch.txt
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --extra test -c $(VENV)/torch.txt -o $@ pyproject.toml
	@touch $@

$(LOWEST)/.test: $(VENV)/lowest.txt tools/venv.sh
	tools/venv.sh $(PYTHON) $(LOWEST) "test" $(VENV)/lowest.txt
	@touch $@

licenses: $(VENV)/.dev deploy/requirements.txt
	@mkdir -p build
	$(BIN)/python tools/licenses.py >build/licenses.txt

# All that a release needs before it is uploaded; what remains is said at the end.
release:
	@test -z "$$(git status --porcelain)" || { echo "Commit first: git status is not empty."; exit 1; }
	.ci/run
	$(MAKE) hashes lowest newest package
	@version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml); \
		echo "Ready. Publish: git tag -s v$$version && git push origin v$$version && $(BIN)/python -m twine upload dist/*"

lowest: export PYTHONDONTWRITEBYTECODE =
lowest: $(LOWEST)/.test
	$(LOWEST)/bin/python -m pytest -n 2 --dist worksteal $(TESTS)

# The newest versions that people install today, PyTorch's included.
newest: export PYTHONDONTWRITEBYTECODE =
newest: $(BIN)/uv
	$(BIN)/uv pip compile --quiet --upgrade --extra dev -o $(VENV)/newest.txt pyproject.toml
	tools/venv.sh $(PYTHON) $(NEWEST) "dev" $(VENV)/newest.txt
	$(NEWEST)/bin/python -m pytest -n 2 --dist worksteal $(TESTS)

# Last, whether every public name has a type that any type checker understands; pyright looks for Python in PATH.
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/names.py src/reverie --max 2
	$(BIN)/python tools/public_names.py
	$(BIN)/python tools/closure.py --max experiment.config=8560 experiment.settings=12500 agent.player=17200 \
		run.loop=4170 algos.td3=11200
	PATH="$(abspath $(BIN)):$$PATH" pyright --verifytypes reverie --ignoreexternal >$(VENV)/types.log || \
		(grep -B 1 -A 1 ' error: ' $(VENV)/types.log; exit 1)

# Pictures of an earlier viewer or terminal are made again, with Chromium.
docs: $(VENV)/.dev
	$(BIN)/python docs/tools/product_pictures.py
	$(BIN)/python docs/tools/documentation.py

notebooks: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet nbclient ipykernel
	$(BIN)/python docs/tools/notebooks.py

wheel: $(VENV)/.demo
	REVERIE_WHEEL=1 $(BIN)/python -m pip wheel --quiet --no-deps -w dist .

package: $(VENV)/.dev
	rm -rf dist
	REVERIE_WHEEL=1 $(BIN)/python -m build --outdir dist . >$(VENV)/package.log 2>&1 || (tail -n 30 $(VENV)/package.log; exit 1)
	$(BIN)/python -m twine check --strict dist/*
	REVERIE_TESTED_WHEEL=$$(echo dist/*.whl) $(BIN)/python -m pytest tests/test_wheel.py

bench: $(VENV)/.dev
	$(BIN)/python bench/demo.py
	$(BIN)/python bench/cartpole.py
	$(BIN)/python bench/update.py
	$(BIN)/python bench/act.py
	$(BIN)/python bench/loop.py
	$(BIN)/python bench/start.py
	$(BIN)/python bench/table.py

clean:
	rm -rf $(VENV) $(LOWEST) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
