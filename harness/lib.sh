# shellcheck shell=bash
# lib.sh - what the scripts of the harness share. Source it, do not run it.
# shellcheck disable=SC2034 # the scripts that source it use the variables

set -euo pipefail

# make kernel ARCH=arm64 must not set ARCH in each make that a script runs.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES

ROOT=$(cd "${BASH_SOURCE[0]%/*}/.." && pwd -P)
HARNESS=$ROOT/harness
BUILD=${BUILD:-$ROOT/build}
CACHE=$BUILD/cache
LOGDIR=$BUILD/log
REPORT=$BUILD/report
JOBS=${JOBS:-$(nproc)}

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }
die() { printf '%s: error: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# kbuild cannot work in such a directory, and says so only after minutes.
case $ROOT$BUILD in
*[[:space:]:]*) die "the path of this checkout, $ROOT, has a space or a colon; kbuild cannot build there" ;;
esac
[[ $JOBS =~ ^[1-9][0-9]*$ ]] || die "JOBS=$JOBS: not a number of jobs"

# one_of NAME choice...: the variable NAME holds one of the choices.
one_of() {
	local name=$1 choice
	shift
	for choice; do
		[[ ${!name} == "$choice" ]] && return
	done
	die "$name=${!name}: unknown; choose from: $*"
}

no_args() {
	[[ $# -eq 0 ]] || die "unknown argument: $* (settings are given as variables, as in: make kselftest TESTS=\"cow\")"
}

need_cmd() {
	local cmd
	for cmd; do
		command -v "$cmd" >/dev/null || die "$cmd: command not found"
	done
}

# need_space DIR MIB: a full disk is told before the work, not after it.
need_space() {
	local free
	mkdir -p "$1"
	free=$(df -Pm "$1" | awk 'NR == 2 { print $4 }')
	(( free >= $2 )) || die "$1 has $free MiB free, $2 MiB are needed; make room, or set BUILD= to a directory elsewhere"
}

# lock NAME: held until the script ends. Two runs at a time take turns
# instead of spoiling one build directory.
lock() {
	local fd
	[[ -d $BUILD/lock ]] || mkdir -p "$BUILD/lock"
	exec {fd}>"$BUILD/lock/$1"
	flock -n "$fd" && return
	warn "waiting for another run that uses $1"
	flock "$fd"
}

# put_file TARGET: stdin becomes TARGET, whole or not at all.
put_file() {
	local tmp=$1.tmp$$

	mkdir -p "$(dirname "$1")"
	if ! cat >"$tmp"; then
		rm -f "$tmp"
		die "cannot write $1"
	fi
	sync "$tmp"
	mv "$tmp" "$1"
}

# Results that are kept from run to run stand in tables: one line for each thing, the fields
# between tabs, the first one is its name.
# row TABLE NAME: the line; nothing if there is none.
row() {
	[[ ! -e $1 ]] || awk -F'\t' -v name="$2" '$1 == name' "$1"
}

# put_row TABLE NAME FIELD...: in place of the line that NAME had.
put_row() {
	local table=$1 line

	shift
	line=$(printf '%s\t' "$@")
	{
		[[ ! -e $table ]] || awk -F'\t' -v name="$1" '$1 != name' "$table"
		say "${line%$'\t'}"
	} | LC_ALL=C sort -V | put_file "$table"
}

elapsed() { printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); }

quoted() {
	local out
	printf -v out '%q ' "$@"
	printf '%s' "${out% }"
}

# fail_log NAME LOG: what one needs to see of a failed step.
fail_log() {
	{
		say "----- $1 failed; the last lines of its log:"
		tail -n 25 "$2" | cut -c1-300
		say "-----"
		if grep -q 'No space left on device' "$2"; then
			say "The disk is full: make room and run it again."
		fi
		say "log:     $2"
	} >&2
}

progress() {
	local start=$SECONDS line

	while kill -0 $$ 2>/dev/null; do
		line=$(tail -n 1 "$2" | tr -cd '[:print:]')
		printf '\r\033[K%s: %s  %.60s' "$1" "$(elapsed $((SECONDS - start)))" "$line"
		sleep 1
	done
}

# run_logged NAME cmd...: run cmd, all output in build/log/NAME.log; one line
# tells what goes on and how long it took.
run_logged() {
	local name=$1 log=$LOGDIR/$1.log start=$SECONDS pid='' rc=0
	shift
	mkdir -p "$LOGDIR"
	printf '$ %s\n' "$(quoted "$@")" >"$log"
	if [[ -t 1 ]]; then
		# The command stays in the foreground: Ctrl-C reaches it.
		progress "$name" "$log" &
		pid=$!
	fi
	"$@" >>"$log" 2>&1 </dev/null || rc=$?
	if [[ $pid ]]; then
		kill "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
		printf '\r\033[K'
	fi
	if ((rc)); then
		fail_log "$name" "$log"
		say "command: (cd $(quoted "$PWD") && $(quoted "$@"))" >&2
		exit "$rc"
	fi
	say "$name: done in $(elapsed $((SECONDS - start)))"
}

# begin_build DIR: make clears up after a signal or a failed command, but not
# after a power cut or kill -9. Then a file cut short looks up to date, so all
# of DIR goes; the compiler cache makes up for most of it.
begin_build() {
	if [[ -e $1/.unfinished ]]; then
		warn "the last build in $1 was cut off; building it afresh"
		rm -rf "$1"
	fi
	mkdir -p "$1"
	: >"$1/.unfinished"
	# shellcheck disable=SC2064 # the directory of now
	trap "rm -f $(quoted "$1/.unfinished")" EXIT
}

# worktree NAME COMMIT: build/trees/NAME becomes a work tree of build/linux at COMMIT.
# Only files that differ are written, so that the next build compiles no others.
worktree() {
	local dir=$BUILD/trees/$1

	if [[ ! -e $dir/.git ]]; then
		rm -rf "$dir"
		git -C "$BUILD/linux" worktree prune
		run_logged "$1-tree" git -C "$BUILD/linux" worktree add -f --detach "$dir" "$2"
	fi
	git -C "$dir" checkout -q -f --detach "$2"
}

# Compiler cache: the trees differ in few files, and the object directories
# lie where relative paths are the same for all trees (see kernel.sh).
use_ccache() {
	CCACHE_DIR=${CCACHE_DIR:-$CACHE/ccache}
	export CCACHE_DIR
	mkdir -p "$CCACHE_DIR"
}

# find_splats CONSOLE: the lines that say that the kernel is not well, without those
# that base has too.
find_splats() {
	tr -d '\r\000' <"$1" | grep -aE -f <(grep -vE '^(#|$)' "$HARNESS/splats.txt") |
		grep -avE -f <(grep -vE '^(#|$)' "${SPLATS_OK:-$HARNESS/splats.ok}")
}

# vm_accel: kvm or tcg. That /dev/kvm opens proves nothing: some clouds have it
# while the guest then hangs. Without vmx or svm it cannot work.
vm_accel() {
	if [[ -w /dev/kvm ]] && grep -qE '^flags.* (vmx|svm)( |$)' /proc/cpuinfo; then
		say kvm
	else
		say tcg
	fi
}

# vm_run LIMIT CONSOLE cmd...: run the emulator under a time limit; its stderr
# goes to CONSOLE. It does not survive this script.
vm_run() {
	local limit=$1 console=$2 pipe pid reader rc=0

	shift 2
	# A pipe, as QEMU opens what it has as stderr anew, and truncates it.
	pipe=$(mktemp -u "$BUILD/console.XXXXXX")
	mkfifo "$pipe"
	cat <"$pipe" >"$console" &
	reader=$!
	# In its own process group, so that all it started is ended with it.
	timeout -k 10 "$limit" "$@" </dev/null 2>"$pipe" &
	pid=$!
	# shellcheck disable=SC2064 # the values of now
	trap "rm -f $(quoted "$pipe"); kill $pid 2>/dev/null" EXIT
	trap 'exit 130' INT TERM
	wait "$pid" || rc=$?
	wait "$reader" || true
	trap - EXIT INT TERM
	rm -f "$pipe"
	return "$rc"
}

VM_TIMED_OUT=124
VM_SPLAT=98
VM_DIED=99

# vm_verdict RC LIMIT CONSOLE COMMAND: turn what happened into an exit status, and
# tell about it.
vm_verdict() {
	local rc=$1 limit=$2 console=$3 command=$4 splats why=

	case $rc in
	124 | 137) rc=$VM_TIMED_OUT why="the VM was stopped at its limit of $limit s" ;;
	255) rc=$VM_DIED why="the VM ended before the command did (panic, or out of memory?)" ;;
	esac
	if splats=$(find_splats "$console"); then
		[[ $rc == "$VM_TIMED_OUT" || $rc == "$VM_DIED" ]] || rc=$VM_SPLAT
		why="the kernel complained${why:+; $why}:
$(head -n 5 <<<"$splats")"
	fi
	if [[ $why ]]; then
		{
			say "----- the last lines of the console:"
			tail -n 30 "$console" | tr -d '\r\000' | cut -c1-200
			say "-----"
			say "$why"
			say "console: $console"
			say "command: $command"
		} >&2
	fi
	return "$rc"
}
