# make course · make test · make lab · make site      (Windows, conda, uv: see README.md)
PYTHON ?= python3
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)

.PHONY: course test lab site
course: .venv/ready  ## execute every notebook: make course ARGS="--from 02 --to 05"
	@$(BIN)/course run $(ARGS)

test: .venv/dev  ## everything that CI runs; two minutes of it: make test ARGS=quick; by name: make test ARGS="-k tokenizer"
	@$(BIN)/course test $(ARGS)

lab: .venv/ready  ## JupyterLab at chapter 00: make lab ARGS="--no-browser --port 8889"
	@$(BIN)/course lab $(ARGS)

site: .venv/ready  ## the course as a book: build/site/html/index.html
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[site]"
	@$(BIN)/course site

.venv/dev: .venv/ready
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[course,dev]"
	@touch $@

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) course/machine/setup_env.py
