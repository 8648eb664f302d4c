#!/bin/bash
# kunit.sh - make kunit: the KUnit tests of the series. They are built with
# kunit.py for UML and run on the host (VM=1: built into the test kernel and run in
# the VM at boot, as `make check` does to save the build).
# The results are build/report/kunit.ktap.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
no_args "$@"

mkdir -p "$REPORT"
report=$REPORT/kunit.ktap
rm -f "$report"
case ${VM:-0} in
0 | '')
	"$HARNESS/deps.sh" source kunit
	"$HARNESS/source.sh"
	"$HARNESS/compose.sh"
	lock kunit
	need_space "$BUILD" 1500
	use_ccache
	cd "$BUILD/linux"
	export PATH=/usr/bin:$PATH
	kunit=(python3 tools/testing/kunit/kunit.py)
	args=(--build_dir "$BUILD/um/kunit" --kunitconfig "$HARNESS/configs/kunit.config")
	# kunit.py makes the last directory only.
	mkdir -p "$BUILD/um/kunit"
	run_logged kunit-config "${kunit[@]}" config "${args[@]}"
	run_logged kunit-build "${kunit[@]}" build "${args[@]}" --jobs "$JOBS" --make_options "CC=ccache gcc"
	run_logged kunit "${kunit[@]}" exec "${args[@]}" --timeout 300 --raw_output=kunit
	sed -n '/^KTAP version/,$p' "$LOGDIR/kunit.log" | put_file "$report"
	;;
1)
	export KERNEL=patched CONFIG=test ARCH=x86_64
	# Not in the config: the other runs of this kernel need no tests at boot.
	export VM_APPEND="kunit.enable=1 kunit.autorun=1"
	"$HARNESS/kernel.sh"
	# shellcheck disable=SC2016 # for the shell in the VM
	"$HARNESS/vm.sh" sh -c 'd=/sys/kernel/debug
		[ -d $d/kunit ] || mount -t debugfs none $d
		cat $d/kunit/*/results' | put_file "$report"
	;;
*) die "VM=$VM: unknown; choose from: 0 1" ;;
esac
grep -v '^#' "$report" || true
"$HARNESS/report.py" count "$report"
