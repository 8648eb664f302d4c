#!/bin/bash
# send-check.sh - make send-check: what git send-email would send to whom, from
# get_maintainer.pl. Nothing is sent: it is a dry run, and the mail server that it
# is told to use does not exist.
#
# SERIES= picks one series. SIGNOFF=1 checks what a person would send; without it
# the author is a placeholder and nobody has signed off.

# shellcheck source=harness/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=harness/series.sh
. "$HARNESS/series.sh"
no_args "$@"
"$HARNESS/deps.sh" lint send
"$HARNESS/compose.sh"

[[ ! -e $BUILD/mails ]] || rm -rf "$BUILD/mails"
mkdir -p "$BUILD/mails"
DIR=$BUILD/mails "$HARNESS/mbox.sh"

# Maintainers of all that a series touches, for each of its mails: a reader of
# one patch wants the others too.
recipients() {
	(cd "$TREE" && perl scripts/get_maintainer.pl --no-git --no-git-fallback --no-tree --norolestats --nomultiline \
		--separator=$'\n' "$@") | sed '/^$/d' | LC_ALL=C sort -u
}

dry_run() {
	local dir=$1 address args=()
	shift
	for address; do
		args+=(--to="$address")
	done
	# Neither the user's aliases nor his server: what is checked are the mails.
	GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null git -C "$TREE" send-email --dry-run --confirm=never \
		--smtp-server=nothing-is-sent.invalid --smtp-server-port=1 --suppress-cc=all --no-format-patch --no-xmailer \
		--thread --no-chain-reply-to --validate --from="$sender" "${args[@]}" "$dir"/*.patch
}

for name in $(cd "$BUILD/mails" && printf '%s\n' * | sort -V); do
	dir=$BUILD/mails/$name
	sender=$(git mailinfo /dev/null /dev/null <"$dir/$COVER" | sed -n 's/^Author: //p; s/^Email: \(.*\)/<\1>/p' | tr '\n' ' ')
	say "series/$name: $(find "$dir" -name '*.patch' | wc -l) mails"
	mapfile -t patches < <(find "$dir" -name '*.patch' ! -name "$COVER" | sort)
	recipients "${patches[@]}" >"$dir/recipients" 2>"$dir/get_maintainer.log" || true
	[[ -s $dir/recipients ]] || die "get_maintainer.pl names nobody for series/$name: $(tail -n 3 "$dir/get_maintainer.log")"
	sed 's/^/  to /' "$dir/recipients"
	mapfile -t addresses <"$dir/recipients"
	# shellcheck disable=SC2016 # for the shell that runs it
	printf '#!/bin/sh\ncat "${0%%/*}/recipients"\n' >"$dir/to"
	chmod +x "$dir/to"
	dry_run "$dir" "${addresses[@]}" >"$dir/dry-run.log" 2>&1 || {
		tail -n 20 "$dir/dry-run.log" >&2
		die "git send-email would not send these; see build/mails/$name/dry-run.log"
	}
	sent=$(grep -c '^Dry-OK' "$dir/dry-run.log" || true)
	say "  dry run: $sent mails accepted, none sent (build/mails/$name/dry-run.log)"
done
if [[ ${SIGNOFF:-} ]]; then
	say "To send one series, read Documentation/process/submitting-patches.rst, and:"
	say "  git send-email --suppress-cc=all --to-cmd=build/mails/<series>/to build/mails/<series>/*.patch"
else
	say "Not to be sent like this: the author is a placeholder and nobody has signed off. SIGNOFF=1 puts you there."
fi
