# SPDX-License-Identifier: GPL-2.0
# Each target is one script in harness/; its head says more. Settings are
# variables: make kselftest TESTS="cow_reuse cow" KERNEL=base

SHELL = /bin/bash
.DEFAULT_GOAL = help
MAKEFLAGS += --no-print-directory

# Where a variable is not given, the scripts' defaults hold.
VARIABLES = KERNEL CONFIG ARCH TESTS LINUX SERIES SIGNOFF JOBS BUILD DIR BRANCH \
	FORCE FRESH DISCARD FULL CONFIGS FROM PARTS RUNS VM MUTANTS QUICK QUICK_SECONDS \
	DURATION SEED REPLAY NATIVE KVM FORKS CASES DEMO_COLUMNS LIMIT INTERVAL PID ROUNDS BOOTS \
	BENCH_ARGS BENCH_PROGRAMS BENCH_COLUMNS RESULTS TEST_ARGS TEST_LIMIT VM_CPUS VM_MEM \
	VM_TIMEOUT VM_APPEND IMAGE DEBIAN_MIRROR COCCI
$(foreach v,$(VARIABLES),$(if $($(v)),$(eval export $(v))))

help: ## list the targets
	@echo 'Targets (settings are variables, as in: make kselftest TESTS="cow_reuse cow"):'
	@sed -n 's/^\([a-z0-9-]*\):.* ## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r t d; do printf '  %-12s %s\n' "$$t" "$$d"; done

kselftest: ## build, boot and test the patched kernel; TESTS="cow_reuse cow" KERNEL=base|patched CONFIG=test|debug|kcsan|rt|16k|64k ARCH=x86_64|arm64
	@harness/kselftest.sh
kernel: ## build one kernel; KERNEL=base|patched CONFIG=test|bench|debug|kcsan|rt|16k|64k ARCH=x86_64|arm64
	@harness/kernel.sh
stress: ## cow_stress for DURATION=1200 seconds on four virtual CPUs; SEED= REPLAY=<seed> KERNEL=base CONFIG=debug
	@harness/stress.sh
shell: ## a shell inside the patched kernel; KERNEL= CONFIG=
	@harness/shell.sh
check: ## all checks: lint, kunit, per-patch builds, kselftest against the list of the base kernel
	@harness/check.sh
check-full: ## what takes too long for check, for LIMIT=3600 seconds; PARTS="debug kcsan"; writes results/check-full.md
	@harness/check-full.sh
small-folios: ## page faults on folios of 4K, base against patched, in guest instructions
	@harness/small-folios.sh
docs: ## the kernel's documentation that the series touch, with Sphinx: no new warning against base
	@harness/docs.sh
watch: ## which write faults after fork() reuse, copy or fall back on this running system; PID= INTERVAL= DURATION=
	@harness/watch.sh
lint: ## under a minute, builds no kernel: mails, checkpatch, shellcheck, kernel-doc, tests of the harness
	@harness/lint.sh
steps: ## build each patch: W=1 and sparse, more configs with FULL=1; FROM=HEAD~2: the last two
	@harness/steps.sh
step-tests: ## boot each patch and run the tests that there are at it, for LIMIT=3600 seconds, then on where it ended; FROM=series~3
	@harness/step-tests.sh
coverage: ## which lines of the series no test reaches (gcov); writes results/coverage.md
	@harness/coverage.sh
cocci: ## coccicheck for mm/: nothing new against base; COCCI="misc/*" picks some
	@harness/cocci.sh
kunit: ## the KUnit tests with kunit.py on UML
	@harness/kunit.sh
bench: ## base against patched in guest instructions; writes results/
	@harness/bench.sh
demo-redis: ## redis-server saves while redis-benchmark stores, base against patched; RUNS=3 NATIVE=1 KVM=1
	@harness/demo-redis.sh
demo-forkserver: ## a server that forks FORKS=1000 workers, base against patched; NATIVE=1 KVM=1
	@harness/demo-forkserver.sh
mutants: ## break one rule of the code at a time and see its test fail; MUTANTS="zero-*"
	@harness/mutants.sh
baseline: ## make harness/baseline/ anew: the results of the tests on the base kernel
	@harness/baseline.sh
tree: ## build/linux: a git tree of the base with the series as commits; DISCARD=1 LINUX=<dir>
	@harness/compose.sh
refresh: ## write the commits of build/linux back to series/ and the new files; FORCE=1
	@harness/refresh.sh
mbox: ## complete mails on stdout: make -s mbox | git am; SERIES=1-reuse SIGNOFF=1
	@harness/mbox.sh
apply: ## the series on top of a tree of your own, as a branch; LINUX=<dir> BRANCH=cow-series
	@harness/apply.sh
send-check: ## dry run of git send-email with the maintainers' addresses; sends nothing; SERIES= SIGNOFF=1
	@harness/send-check.sh
clean: ## remove all that was built; keeps build/linux and the downloads
	@harness/clean.sh

.PHONY: help kselftest stress kernel shell check check-full small-folios docs watch lint steps step-tests coverage cocci kunit bench demo-redis demo-forkserver mutants baseline tree refresh mbox apply send-check clean
