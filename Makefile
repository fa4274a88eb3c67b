# Everything sets itself up: a fresh machine needs git, make and Python 3.11 or newer.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo-bill fit-report real-probe-report demo test check format test-real accuracy sim-timing curve-report gate-report pricing-report live-deepseek docs clean

$(VENV)/.ready: pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kvbench needs Python 3.11 or newer; set PYTHON=/path/to/python"; exit 2; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.ready   ## replay the bundled agent trace against the built-in simulated endpoint
	@$(BIN)/kvbench run agent-trace.jsonl --endpoint sim --time-scale 0.04 --out runs; code=$$?; \
	 if [ $$code -eq 3 ]; then echo "exit 3: see the trust line above; on a busy machine this is expected"; elif [ $$code -ne 0 ]; then exit $$code; fi

test: $(VENV)/.ready   ## unit and integration tests, loopback only, a few at a time
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal

test-real: $(VENV)/.ready   ## the same package against real servers, each in an environment of its own outside the project
	$(BIN)/python tests/real/servers/install.py
	$(BIN)/python -m pytest -q -m real tests/real

check: $(VENV)/.ready   ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

accuracy: $(VENV)/.ready   ## arrival times against a server that logs its writes; writes reports/accuracy
	$(BIN)/python reports/accuracy/run.py

curve-report: $(VENV)/.ready   ## what the miss-ratio curve costs in time and memory; writes reports/curve
	$(BIN)/python reports/curve/run.py

gate-report: $(VENV)/.ready   ## how often the regression gate errs, by simulation and over HTTP; writes reports/gate
	$(BIN)/python reports/gate/run.py

fit-report: $(VENV)/.ready   ## how near fits come to endpoints whose truth is known; writes reports/fit
	$(BIN)/python reports/fit/run.py

real-probe-report: $(VENV)/.ready   ## probes against a real vLLM whose pool is known; writes reports/fit/vllm.md
	$(BIN)/python tests/real/servers/install.py vllm
	$(BIN)/python reports/fit/real.py

pricing-report: $(VENV)/.ready   ## what a verdict on a bill is worth: faults found, honest bills accused; writes reports/pricing
	$(BIN)/python reports/pricing/run.py

demo-bill: $(VENV)/.ready   ## the bundled demo run's bill, honest and not, verified; writes reports/demo-bill
	$(BIN)/python reports/demo-bill/run.py

sim-timing: $(VENV)/.ready   ## how late the simulated endpoint writes, against its own plan; writes reports/sim
	$(BIN)/python reports/sim/run.py

live-deepseek: $(VENV)/.ready   ## with DEEPSEEK_API_KEY: ask the live API what its documentation leaves open, for at most USD 0.20
	$(BIN)/python reports/live-deepseek/live.py

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.ready   ## docs/cli.md from the commands' own help, the tables of docs/sim.md
	$(BIN)/python -m kvbench.cli.reference > docs/cli.md
	$(BIN)/python -m kvbench.sim.reference docs/sim.md

clean:
	rm -rf $(VENV) .real .pytest_cache .mypy_cache .ruff_cache .hypothesis
