# Everything a developer does here. `make` alone lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# What `make run` needs, apart from what developers need.
RUN := .venv-run
RUN_READY := $(RUN)/.ready

$(READY): pyproject.toml constraints.txt install.sh
	@echo "setting up $(VENV): a few minutes, once"
	@PYTHON=$(PYTHON) ./install.sh $(VENV) bench,simulator,operator,kubernetes,otel,nats,envoy,tokenizers dev
	@touch $@

$(RUN_READY): pyproject.toml constraints.txt install.sh
	@echo "setting up $(RUN): about half a minute, once"
	@PYTHON=$(PYTHON) ./install.sh $(RUN) simulator,envoy,bench
	@touch $@

.PHONY: help
help:  ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

.PHONY: setup
setup: $(READY)  ## Make the virtual environment, with a real Envoy in it

.PHONY: run
run: $(RUN_READY)  ## Start Envoy, the service and four simulated vLLM endpoints; Ctrl-C stops them
	@PYTHONPATH=$(CURDIR) exec $(RUN)/bin/python envoy/run.py

.PHONY: demo
demo: $(RUN_READY)  ## The same under load, with keys: another strategy, kill an endpoint
	@PYTHONPATH=$(CURDIR) exec $(RUN)/bin/python envoy/demo.py

.PHONY: lock
lock: $(READY)  ## Write constraints.txt, with hashes; UPGRADE=--upgrade for newer versions
	@$(BIN)/python -m pip install -qq --group tools
	@printf 'pip\nsetuptools>=77\n' | $(BIN)/uv pip compile pyproject.toml - --all-extras --group dev --group tools --group docs --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --no-emit-index-url --quiet $(UPGRADE) --output-file constraints.txt >/dev/null

IMAGE ?= extproc-router:local
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' extproc/__init__.py)
IMAGE_ARGS = $(if $(EXTRAS),--build-arg EXTRAS=$(EXTRAS)) --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD)

.PHONY: image
image:  ## Build IMAGE: router, operator, benchmarks; needs Docker. Smaller with fewer EXTRAS
	docker build $(IMAGE_ARGS) --tag $(IMAGE) .

.PHONY: image-push
image-push:  ## Build and push IMAGE for amd64 and arm64; needs buildx and a login
	docker buildx inspect release >/dev/null 2>&1 || docker buildx create --name release
	@mkdir -p build
	docker buildx build --builder release --platform linux/amd64,linux/arm64 $(IMAGE_ARGS) --metadata-file build/image.json --push --tag $(IMAGE) .

.PHONY: version
version:  ## Print the version
	@echo $(VERSION)

.PHONY: notes
notes:  ## Print the version's section of CHANGELOG.md
	@awk -v start='## [$(VERSION)]' 'index($$0, "## [") == 1 { wanted = index($$0, start) == 1; next } wanted' CHANGELOG.md

.PHONY: wheel
wheel:  ## Build dist/*.whl, install it in a new environment and ask it for its version
	@rm -rf build/wheel && mkdir -p build dist
	@PYTHON=$(PYTHON) WHEELS=dist ./install.sh build/wheel ""
	@build/wheel/bin/extproc --version | grep -F " $(VERSION)" && rm -rf build/wheel

.PHONY: chart
chart:  ## Pack the Helm chart into dist/, with the manifests' files in it
	@rm -rf build/helm && mkdir -p build dist
	@$(PYTHON) -m venv build/helm && build/helm/bin/python -m pip install -qq --upgrade pip && build/helm/bin/python -m pip install -qq --constraint constraints.txt helm-python-sdk
	@build/helm/bin/python -c 'import helm_python; print(helm_python.package("charts/extproc-router", destination="dist"))' 2>/dev/null
	@rm -rf build/helm

.PHONY: sign
sign:  ## Sign every file in dist/, as FILE.sigstore.json; needs cosign
	for file in $$(ls dist/* | grep -v sigstore); do cosign sign-blob --yes --bundle $$file.sigstore.json $$file || exit 1; done

.PHONY: sign-image
sign-image:  ## Sign the image that `make image-push` pushed as IMAGE; needs cosign
	cosign sign --yes $(IMAGE)@$$($(PYTHON) -c 'import json; print(json.load(open("build/image.json"))["containerimage.digest"])')

.PHONY: sbom
sbom:  ## Write build/sbom.json (CycloneDX): what is in the image's environment
	@rm -rf build/sbom build/cyclonedx && mkdir -p build
	@PYTHON=$(PYTHON) ./install.sh build/sbom $(or $(EXTRAS),$(shell sed -n "s/^ARG EXTRAS=//p" Dockerfile))
	@$(PYTHON) -m venv build/cyclonedx && build/cyclonedx/bin/python -m pip install -qq --upgrade pip && build/cyclonedx/bin/python -m pip install -qq --constraint constraints.txt --group tools
	@build/cyclonedx/bin/cyclonedx-py environment --output-reproducible --output-file build/sbom.json build/sbom/bin/python
	@rm -rf build/sbom build/cyclonedx && echo build/sbom.json

.PHONY: test
test: $(READY)  ## The gate: `make check` and all quick tests, about six minutes
	@$(BIN)/python -m tests.gate

.PHONY: test-slow
test-slow: $(READY)  ## The rest: foreign clients, browsers, NATS, Prometheus, faults
	@$(BIN)/python tests/slow/packages.py
	@# These tests wait for a third of their time: three at once keep two cores busy.
	@HYPOTHESIS_PROFILE=slow $(BIN)/python -m pytest --numprocesses 3 --dist loadgroup -m "slow or hypothesis" -r s $(PYTEST_ARGS)

.PHONY: unit
unit: $(READY)  ## One package's tests: make unit PYTEST_ARGS=tests/grpc_server
	@$(BIN)/python -m pytest $(or $(PYTEST_ARGS),--numprocesses 2 --dist loadgroup -m "not slow" --ignore tests/slow)

.PHONY: check
check: lint types layers generated-check  ## Lint, types, layers, generated files

.PHONY: generated-check
generated-check: protos-check monitoring-check crd-check

.PHONY: lint
lint: $(READY)  ## Format and lint, without a change
	$(BIN)/ruff format --check
	$(BIN)/ruff check

.PHONY: budgets
budgets: $(READY)  ## What each house measures, and what it may
	@$(BIN)/python -m tests.budgets

.PHONY: golden
golden: $(READY)  ## Write the golden table: what the rule takes in each edge cell, to the digit
	@$(BIN)/python -m tests.golden.rule_table

.PHONY: types
types: $(READY)  ## mypy, all of it
	$(BIN)/mypy

.PHONY: layers
layers: $(READY)  ## Who may import whom (contracts.toml)
	@for contracts in $$(find extproc -name contracts.toml | sort); do $(BIN)/lint-imports --no-cache --config $$contracts || exit 1; done

PROTOC = $(BIN)/python -m grpc_tools.protoc -Iprotos
SERVERS = examples/model-servers

.PHONY: protos
protos: $(READY)  ## Compile protos/ into the package
	$(PROTOC) --python_out=extproc/router/stream --pyi_out=extproc/router/stream protos/ext_proc.proto
	$(PROTOC) --python_out=extproc/router/feedback --pyi_out=extproc/router/feedback protos/access_log.proto
	$(PROTOC) -I$(SERVERS) --python_out=$(SERVERS) --pyi_out=$(SERVERS) $(SERVERS)/jetstream.proto

.PHONY: protos-check
protos-check: $(READY)
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT \
	&& $(PROTOC) -I$(SERVERS) --python_out=$$out --pyi_out=$$out protos/ext_proc.proto protos/access_log.proto $(SERVERS)/jetstream.proto \
	&& diff $$out/ext_proc_pb2.py extproc/router/stream/ext_proc_pb2.py \
	&& diff $$out/ext_proc_pb2.pyi extproc/router/stream/ext_proc_pb2.pyi \
	&& diff $$out/access_log_pb2.py extproc/router/feedback/access_log_pb2.py \
	&& diff $$out/access_log_pb2.pyi extproc/router/feedback/access_log_pb2.pyi \
	&& diff $$out/jetstream_pb2.py $(SERVERS)/jetstream_pb2.py \
	&& diff $$out/jetstream_pb2.pyi $(SERVERS)/jetstream_pb2.pyi \
	&& echo "generated code is what protos/ gives"

.PHONY: monitoring
monitoring: $(READY)  ## Make the PrometheusRule and the dashboards from monitoring/
	$(BIN)/python -m monitoring.generate

.PHONY: monitoring-check
monitoring-check: $(READY)
	@$(BIN)/python -m monitoring.generate --check

CRD = manifests/components/operator/crd.yaml

.PHONY: reference
reference: $(READY)  ## Make docs/reference/ and the chart's schema of values from settings, commands, metrics and spec
	$(BIN)/python -m docs.generate
	$(BIN)/python -m charts.generate

# What `make docs` needs, and nothing else does.
DOCS := .venv-docs

$(DOCS)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(DOCS) && $(DOCS)/bin/python -m pip install -qq --upgrade pip
	@$(DOCS)/bin/python -m pip install -qq --constraint constraints.txt --group docs
	@touch $@

.PHONY: docs
docs: $(DOCS)/.ready  ## Build the docs as a site in build/site; warnings are errors
	@$(DOCS)/bin/zensical build --clean --strict
	@rm -rf build/site/generate.py build/site/__pycache__

.PHONY: crd
crd: $(READY)  ## Make the CustomResourceDefinition of Benchmarks from the spec's model
	$(BIN)/python -m extproc operate --print-crd > $(CRD)

.PHONY: crd-check
crd-check: $(READY)
	@$(BIN)/python -m extproc operate --print-crd | diff - $(CRD) \
	&& echo "the CustomResourceDefinition is what the spec's model gives"

.PHONY: format
format: $(READY)  ## Format the code, fix what can be fixed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: bench
bench: $(READY)  ## Measure; prints tables, writes JSON to build/bench/
	$(BIN)/python -m tests.benchmarks --out build/bench

.PHONY: bench-seed
bench-seed: $(READY)  ## Run KubeAI's published 8 x L4 benchmark again, beside its figures
	$(BIN)/python -m tests.benchmarks --out build/bench seed

.PHONY: bench-cost
bench-cost: $(READY)  ## CPU, memory and latency at other routers' published sizes (5 minutes)
	$(BIN)/python -m tests.benchmarks --out build/bench cost

.PHONY: bench-events
bench-events: $(READY)  ## What hearing KV events costs, and a flood of them (5 minutes)
	$(BIN)/python -m tests.benchmarks --out build/bench events

.PHONY: bench-gateways
bench-gateways: $(READY)  ## One gateway, two that share picks, two that do not: hits and TTFT
	$(BIN)/python -m tests.benchmarks --out build/bench gateways

.PHONY: bench-terms
bench-terms: $(READY)  ## What each term of the rule is worth: the table of docs/why/cost-terms.md (an hour)
	$(BIN)/python -m tests.benchmarks --out build/bench terms

.PHONY: test-vllm
test-vllm: $(READY)  ## Compare the simulated vLLM with a real one, set up in .vllm/ (4 GB)
	$(BIN)/python tests/slow/real/install.py .vllm
	REAL_VLLM=.vllm $(BIN)/python -m pytest -s tests/slow/real tests/slow/gpu

.PHONY: gpu-proof
gpu-proof: $(READY)  ## Measure and compare on this machine's GPU, with vLLM in .gpu/ (10 minutes)
	python3.12 -m venv .gpu/venv && .gpu/venv/bin/pip install -q vllm==0.26.0
	.gpu/venv/bin/python tests/gpu/models.py .gpu/models 3b 8b
	cp envoy/standalone.yaml .gpu/
	$(BIN)/python tests/gpu/proof.py --kit .gpu --engine-python .gpu/venv/bin/python --out .gpu/out

.PHONY: gpu-kit
gpu-kit:  ## Pack what a machine with a GPU and no network needs, into .gpu/work/parts
	bash tests/gpu/prepare.sh .gpu/work

.PHONY: test-envoys
test-envoys: $(READY)  ## Run on every supported Envoy what versions might do differently
	$(BIN)/python tests/slow/stack/envoys.py $(ENVOYS)

.PHONY: docker-check
docker-check:
	@$(PYTHON) tests/slow/packages.py --docker

.PHONY: compose-test
compose-test: docker-check $(READY)  ## Break the parts of a composed stack under load; needs Docker
	COMPOSE=required $(BIN)/python -m pytest -m slow tests/slow/compose $(PYTEST_ARGS)

.PHONY: fuzz
fuzz: $(READY)  ## Fuzz the parsers, the session and HTTP/2 for FUZZ_SECONDS
	$(BIN)/python -m pip install --quiet --group fuzz
	$(BIN)/python -m tests.slow.fuzz.fuzz --seconds $(or $(FUZZ_SECONDS),120)

.PHONY: fuzz-http2
fuzz-http2: $(READY)  ## Hold our HTTP/2 against h2 for FUZZ_RUNS seeded conversations
	$(BIN)/python -m tests.slow.fuzz.fuzz --target http2 --runs $(or $(FUZZ_RUNS),100000) --seed $(or $(FUZZ_SEED),0)
	$(BIN)/python -m tests.slow.fuzz.fuzz --target blocks --runs $(or $(FUZZ_RUNS),100000) --seed $(or $(FUZZ_SEED),0)

.PHONY: soak
soak: $(READY)  ## Gateways that share picks, under load and faults for MINUTES
	$(BIN)/python -m tests.slow.soak --minutes $(or $(MINUTES),30) --seed $(or $(SEED),1) --carrier $(or $(CARRIER),nats)

.PHONY: clean
clean:
	rm -rf $(VENV) $(RUN) $(DOCS) .cache .envoys .vllm .gpu .run build .mypy_cache .hypothesis .ruff_cache .pytest_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
