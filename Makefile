# The two commands of the README, `make run` and `make test`, and their smaller relatives. Everything here is a thin call
# of scripts/. One cargo profile (`ci`) serves them all: a second one would compile llama.cpp again.

.PHONY: help run test test-models bench soak check needs model models templates

help:
	@echo 'make run          install what the build lacks, fetch the demo model, build, serve the demo household'
	@echo '                  MODEL=/path/x.gguf make run   serves it with another model'
	@echo '                  FEATURES=cuda make run        also metal, vulkan, rocm (their toolkits are yours to install)'
	@echo 'make test         format, lints, and all tests that the demo model can show'
	@echo 'make test-models  the same for two more models (0.75 GB to fetch)'
	@echo 'make bench        cold and warm time to first token on this machine, and micro-benchmarks'
	@echo 'make soak         the long tests (half an hour; one more model, 0.5 GB to fetch)'
	@echo 'make check        format and lints only, and cargo-deny where it is installed'
	@echo 'make needs        only install what the build lacks'
	@echo 'make model        only fetch the demo model; make models fetches all three, make templates the chat templates of the tests'

run: needs
	@scripts/run.sh

test: needs model templates
	@scripts/test.sh

test-models: needs models
	@scripts/test-long.sh models

soak: needs
	@scripts/model.py demo qwen
	@scripts/test-long.sh soak

bench: needs
	@scripts/bench.sh

check: needs
	@scripts/check.sh

needs:
	@scripts/needs.sh

model: needs
	@scripts/model.py demo

templates: needs
	@scripts/templates.py

models: needs
	@scripts/model.py demo gemma qwen
