# What a person types. Thin: the work is in `python -m gb10` (its exit codes say where the node is; make turns each failure into 2).
SITE ?= .
PYTHON_BIN := .venv/bin/python
GB10 := exec $(PYTHON_BIN) -m gb10
CPU := examples/cpu

.DEFAULT_GOAL := help
.PHONY: help setup render diff doctor images deploy-baseline try try-graph try-profile try-graph-profile restore verify status \
        acknowledge smoke prefix bench compare report profile demo demo-clean test test-fast lint format benchmark lock

help: ## This help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nSITE=examples/cpu names another site, DRY_RUN=1 prints the commands of a target that changes the node.\n'

##@ First steps
setup: ## The Python environment in .venv, nothing else
	@setup/venv.sh
demo: setup ## Everything on a fresh machine: Docker, images, then the tour on examples/cpu (real vLLM, CPU)
	@$(GB10) demo --site $(CPU)
demo-clean: setup ## Remove what the demo made
	@$(GB10) demo-clean --site $(CPU)
doctor: setup ## What the site needs on this node, with the mend
	@$(GB10) doctor --site $(SITE)

##@ The daily loop
render: setup ## vars.yaml -> compose.yaml and overlays/
	@$(PYTHON_BIN) render.py --site $(SITE)
images: setup ## Build or pull the site's images (a deploy never does)
	@$(GB10) images --site $(SITE)
diff: setup ## Rendered files against vars.yaml, then the running container against them
	@$(PYTHON_BIN) render.py --site $(SITE) --diff
	@$(GB10) diff --site $(SITE)
verify: setup ## Is the node what the repository says? Changes nothing (HOST=ssh://user@node: from another machine; REPORT=dir: JUnit, JSON)
	@$(GB10) verify --site $(SITE) $(if $(or $(findstring command,$(origin HOST)),$(filter ssh://%,$(HOST))),--host $(HOST)) $(if $(REPORT),--report $(REPORT))
status: setup ## What runs now, since when
	@$(GB10) status --site $(SITE)

##@ Asks and measures
smoke: setup ## The smoke cases, asked of what serves now
	@$(GB10) smoke --site $(SITE)
prefix: SUITE = prefix
prefix: bench ## Is the prefix cache used, and are the answers right when it is?
bench: setup ## A suite on the baseline that serves: SUITE=name ROUNDS=number
	@$(GB10) bench $(SUITE) --site $(SITE) $(if $(ROUNDS),--rounds $(ROUNDS))
compare: setup ## Two runs against each other: A=directory B=directory
	@$(GB10) compare $(A) $(B) --site $(SITE)
report: setup ## The report of the newest try again, from its records: EXPERIMENT=name
	@$(GB10) report --site $(SITE) $(if $(EXPERIMENT),--experiment $(EXPERIMENT))
profile: setup ## What the GPU did, from traces of Nsight Systems or the torch profiler: TRACES="window.1.sqlite ..."
	@$(GB10) profile report $(TRACES)

##@ Changes the node
deploy-baseline: setup ## Start the rendered baseline, prove it, keep its bytes (ALLOW_DIRTY=1: uncommitted files, FRESH=1: a new start)
	@$(GB10) deploy-baseline --site $(SITE) $(if $(FRESH),--fresh) $(if $(DRY_RUN),--dry-run)
try: setup ## Try EXPERIMENT=name on top of the baseline, then restore (HOLD=seconds keeps it up, BASELINE_RUN=directory: compare with an earlier run)
	@$(GB10) try $(EXPERIMENT) --site $(SITE) $(if $(HOLD),--hold $(HOLD)) $(if $(BASELINE_RUN),--baseline-run $(BASELINE_RUN)) $(if $(DRY_RUN),--dry-run)
try-graph: EXPERIMENT = graph
try-graph: try ## Try CUDA graphs with prefix caching, then restore
try-profile: EXPERIMENT = profile
try-profile: try ## Try the baseline under the profiler, then restore
try-graph-profile: EXPERIMENT = graph-profile
try-graph-profile: try ## Try graphs under the profiler, then restore
restore: setup ## Back to the stored baseline, from any state
	@$(GB10) restore --site $(SITE) $(if $(DRY_RUN),--dry-run)
acknowledge: setup ## Say that the history and repository findings were seen (recorded)
	@$(GB10) acknowledge --site $(SITE)

##@ Working on this repository
test: setup ## All tests, with real containers and real vLLM (sets the machine up like the demo)
	@$(PYTHON_BIN) -m gb10 set-up --site $(CPU)
	@$(PYTHON_BIN) -m pytest -n 3 --dist loadfile -m "not alone"
	@exec $(PYTHON_BIN) -m pytest -m alone
test-fast: setup ## The offline tests
	@exec $(PYTHON_BIN) -m pytest --ignore tests/e2e
lint: setup ## ruff, and the rendered files of both sites against their variables
	@$(PYTHON_BIN) -m ruff check . && $(PYTHON_BIN) -m ruff format --check .
	@$(PYTHON_BIN) render.py --check && $(PYTHON_BIN) render.py --site $(CPU) --check
format: setup ## ruff format
	@$(PYTHON_BIN) -m ruff format . && $(PYTHON_BIN) -m ruff check --fix .
benchmark: setup ## Ratios, measured side by side in one run (the CPU site has to serve: make demo)
	@$(PYTHON_BIN) -m gb10 set-up --only-refuse --site $(CPU)
	@code=0; for file in benchmarks/*.py; do $(PYTHON_BIN) $$file || code=1; done; exit $$code
lock: setup ## Resolve setup/requirements.lock again from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra dev --extra analysis --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --output-file setup/requirements.lock
