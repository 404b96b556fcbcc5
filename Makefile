# The commands that do everything, from a machine with Python 3.11, a shell and make.
# All make the environment in .venv first, where it is missing or out of date.

.PHONY: search test docs

search: # A real search on the embedded corpus; run again, it resumes.
	@tools/with_environment.sh python -m paxtune.search --exp=lm.StdlibTunable --num_trials=16

test: # The fast suite; `.ci/full` runs everything.
	@tools/with_environment.sh python -m pytest -n logical --maxprocesses=8 --dist=loadfile --durations=10

docs: # The documentation as a site, in build/site.
	@NO_MKDOCS_2_WARNING=1 tools/with_environment.sh python -m mkdocs build --strict
