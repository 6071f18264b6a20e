# Every target sets up what it needs; if nothing changed, that takes a second. PYTHON=… selects the Python of .venv;
# JAXCOMM_CUDA=ON also downloads NVIDIA's compiler into .venv and builds the CUDA core, which needs no GPU.

BIN := .venv/bin
# Debian's, which `tools/setup.sh bazel` installs; another one on PATH may be too new for WORKSPACE.
BAZEL ?= /usr/bin/bazel
FUZZ_SECONDS ?= 60
HISTORIES ?= 100000
SEED ?= 0

CORE := jaxcomm/ffi/libjaxcomm_cpu.so
CORE_SOURCES := CMakeLists.txt tools/cuda.cmake $(shell find cc -not -name '*_test.cc' -not -name BUILD.bazel -not -name README.md)
ifeq ($(JAXCOMM_CUDA),ON)
CUDA_CORE := jaxcomm/gpu/jaxcomm_cuda13.so
# In a separate process, which has JAX's CUDA plugin.
COMPILE_AHEAD := 'PYTHONPATH=build/cuda_plugin $(BIN)/python -m pytest tests/gpu/test_compile_ahead.py'
endif
FORMATTED := $(shell find cc -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
FUZZERS := $(basename $(shell find cc -name '*_fuzz.cc'))
# That CMake compiles without CUDA.
TIDIED := $(shell find cc -name '*.cc' -not -name '*_test.cc' -not -name '*_fuzz.cc' -not -path 'cc/gpu/*' \
  -not -path 'cc/transport/simulated/*' -not -path 'cc/simulated_system/*')

# If it were set, each of hundreds of processes would recompile all our modules.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: help setup bazel demo bench claims notebooks docs wheels test test-slow test-newest test-installed test-tpu test-all sanitize fuzz histories lint tidy format clean

help:
	@echo 'make demo       profiles, plans, trains and reports on this machine; ARGS="--out DIR" reaches `jaxcomm demo`'
	@echo 'make test       Python and C++ tests, in about ten minutes; with JAXCOMM_CUDA=ON those of the CUDA core, too;'
	@echo '                ARGS="-k ring" reaches pytest'
	@echo 'make test-slow       the Python tests that take longer: of jobs, networks, trainings and documents'
	@echo 'make test-newest     the tests that run JAX once more, with the newest JAX in the newest Python that is found'
	@echo 'make test-installed  installs the package without extras and with all extras, and trains under a plan in both'
	@echo 'make test-all        these four in turn'
	@echo 'make test-tpu        compiles steps for TPUs without a TPU; downloads XLA'"'"'s TPU compiler, 213 MB, from PyPI'
	@echo 'make bench      the table over sizes; ARGS="--help" shows its options'
	@echo 'make claims     reruns the figures that pages quote; ARGS: "hosts" (some), --quick (twelve minutes), --list'
	@echo 'make notebooks  executes notebooks/*.md, each in an empty environment, into *.ipynb; ARGS="03" only those named 03…'
	@echo 'make docs       the documentation, in build/docs/html'
	@echo 'make wheels     what a release consists of, in dist: the source distribution, and wheels for x86-64 and aarch64;'
	@echo '                installs and tries each, that for aarch64 under QEMU'
	@echo 'make lint       ruff, mypy and clang-format; `make format` fixes what they can fix'
	@echo 'make tidy       clang-tidy on the C++ core, with the checks of .clang-tidy'
	@echo 'make sanitize   the C++ tests under the address, undefined-behaviour and thread sanitizers'
	@echo 'make fuzz       each C++ fuzzer for FUZZ_SECONDS=$(FUZZ_SECONDS)'
	@echo 'make histories  HISTORIES=$(HISTORIES) histories of simulated jobs, with their faults, from SEED=$(SEED) on; prints failed seeds'
	@echo 'make setup      only what the other targets need: .venv, the C++ core, Bazel'
	@echo 'make clean      removes everything that was built, including .venv'

setup: bazel $(CORE) $(CUDA_CORE)

bazel:
	@tools/setup.sh bazel

demo: $(CORE)
	@$(BIN)/jaxcomm demo $(ARGS)

bench: $(CORE)
	@$(BIN)/jaxcomm bench $(ARGS)

claims: $(CORE)
	@$(BIN)/python -m benchmarks.claims $(ARGS)

notebooks: $(CORE)
	@tools/setup.sh notebooks
	@$(BIN)/python tools/notebooks.py $(ARGS)

docs: $(CORE)
	@$(BIN)/python -m sphinx -q -W --keep-going -b html -c docs -d build/docs/doctrees . build/docs/html
	@echo 'build/docs/html/index.html'

wheels: bazel .venv/.installed
	@tools/setup.sh release
	@tools/release.sh
	@tools/setup.sh released
	@tools/each.sh 'make wheels' tools/try_release.sh tools/try_aarch64.sh

# Three workers on two cores, because tests of processes often wait for a process.
PYTEST := python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
versions = $$($(1)/bin/python -c 'import platform, jax; print("Python", platform.python_version() + ", JAX", jax.__version__)')

test: setup
	@tools/setup.sh testbed
	@tools/each.sh "make test ($(call versions,.venv))" '$(BIN)/$(PYTEST) -m "not slow" $(ARGS)' $(COMPILE_AHEAD) '$(BAZEL) test //...'

test-slow: setup
	@tools/setup.sh testbed
	@tools/each.sh "make test-slow ($(call versions,.venv))" '$(BIN)/$(PYTEST) -m slow $(ARGS)'

# The tests of the folders that run JAX. Uses the core of .venv, which newer versions of JAX accept.
WITH_JAX := $(addprefix tests/,auto_plan backend collectives distributed ffi gpu measure newcomer package processes train)
test-newest: setup .venv-newest/.installed
	@tools/setup.sh testbed
	@if [ "$(call versions,.venv)" = "$(call versions,.venv-newest)" ]; then \
	  echo "make test-newest: skipped: this machine has no newer Python, and \`make test\` has $(call versions,.venv)"; \
	else \
	  tools/each.sh "make test-newest ($(call versions,.venv-newest))" '.venv-newest/bin/$(PYTEST) $(or $(ARGS),$(WITH_JAX))'; \
	fi

test-installed: .venv/.installed
	@tools/setup.sh installed
	@rm -rf build/installed/tried && mkdir -p build/installed/tried
	@tools/each.sh 'make test-installed' '.venv-all/bin/python -I tools/try_installation.py all build/installed/tried' \
	  '.venv-bare/bin/python -I tools/try_installation.py bare build/installed/tried'

# In a separate process: with a TPU library but no TPU, JAX reports an error in every program.
test-tpu: $(CORE) build/tpu_plugin/.installed
	@PYTHONPATH=build/tpu_plugin $(BIN)/python -m pytest tests/gpu/test_compile_ahead_tpu.py $(ARGS)

test-all:
	@tools/each.sh 'make test-all' '$(MAKE) test' '$(MAKE) test-slow' '$(MAKE) test-newest' '$(MAKE) test-installed'

sanitize: setup
	@tools/each.sh 'make sanitize' $(foreach kind,asan ubsan tsan,'$(BAZEL) test --config=$(kind) //...')

fuzz: setup
	@tools/setup.sh fuzz
	@tools/each.sh 'make fuzz' $(foreach fuzzer,$(FUZZERS),'$(BAZEL) run --config=fuzz $(fuzzer) -- \
	  -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$(CURDIR)/build/fuzz-')

histories: setup
	@tools/each.sh 'make histories' 'HISTORIES=$(HISTORIES) SEED=$(SEED) $(BAZEL) run -c opt //cc/simulated_system:job_history_test' \
	  '$(BIN)/python -m tests.distributed.simulated_job --histories $(HISTORIES) --seed $(SEED)'

lint: .venv/.installed
	@tools/each.sh 'make lint' '$(BIN)/ruff check' '$(BIN)/ruff format --check' '$(BIN)/mypy' \
	  '$(BIN)/clang-format --dry-run -Werror $(FORMATTED)'

tidy: $(CORE)
	@tools/setup.sh tidy
	@$(BIN)/cmake -DCMAKE_EXPORT_COMPILE_COMMANDS=ON build/editable >build/tidy.log 2>&1 || { cat build/tidy.log; exit 1; }
	@tools/each.sh 'make tidy' 'printf "%s\n" $(TIDIED) | xargs -P $$(nproc) -n 1 $(BIN)/clang-tidy -p build/editable --quiet'

format: .venv/.installed
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format
	@$(BIN)/clang-format -i $(FORMATTED)

clean:
	rm -rf .venv .venv-newest .venv-bare .venv-all build docs/reference/api jaxcomm/*/*.so
	-$(BAZEL) clean

.venv/.installed: pyproject.toml tools/setup.sh jaxcomm/backend/jaxcomm.pth
	@tools/setup.sh python
	@touch $@

.venv-newest/.installed: .venv/.installed
	@tools/setup.sh newest
	@touch $@

build/tpu_plugin/.installed: .venv/.installed
	@tools/setup.sh tpu
	@touch $@

# The installation above also builds the core; this rebuilds it when sources change.
$(CORE): .venv/.installed $(CORE_SOURCES)
	@$(BIN)/cmake --build build/editable -- --quiet
	@touch $@

# If the installation above found no toolchain, it left out the CUDA core.
.venv/.cuda13: .venv/.installed
	@tools/setup.sh cuda
	@$(BIN)/cmake -DJAXCOMM_CUDA=ON build/editable >build/cuda.log 2>&1 || { cat build/cuda.log; exit 1; }
	@touch $@

ifdef CUDA_CORE
$(CUDA_CORE): .venv/.cuda13 $(CORE_SOURCES)
	@$(BIN)/cmake --build build/editable -- --quiet
	@touch $@
endif
