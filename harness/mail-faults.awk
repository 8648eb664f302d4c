# mail-faults.awk - what the mails of a series have to have, after what send-email and the
# list expect. Prints "<number of the mail> <what is wrong>".
#
# awk -v author="<From:>" -v total=<patches> -f mail-faults.awk COVER PATCH...
function fault(text) { print n, text }
function finish() {
	if (!from) fault("From: is not the placeholder " author " (make refresh)")
	if (!date) fault("no Date:")
	if (!subject) fault("Subject: does not begin with [PATCH " n "/" total "] or [RFC PATCH v2 " n "/" total "] (make refresh)")
	if (unwritten) fault("the text is still to be written")
	if (tags) fault("has a tag that only a person can give (Signed-off-by comes from SIGNOFF=1)")
	if (lines < 2) fault("the changelog is empty")
	if (n == 0 && !base) fault("no base-commit:")
	if (n == 0) return
	if (!assisted) fault("no Assisted-by: LLM")
	if (lost != "") fault("text between --- and the diffstat, which make refresh would lose; put it into the cover letter: " lost)
	if (binary) fault("has a binary file")
}
BEGIN { n = -1 }
FNR == 1 {
	if (n >= 0) finish()
	n++
	place = "header"
	from = date = subject = unwritten = tags = lines = base = assisted = binary = 0
	lost = ""
	wanted = "^Subject: \\[([A-Z0-9 -]+ )?PATCH( [A-Za-z0-9-]+)* 0*" n "/" total "\\] "
}
/\*\*\* (SUBJECT|BLURB) HERE/ { unwritten = 1 }
/^base-commit: ([0-9a-f]+|v[0-9.]+)$/ { base = length($2) == 40 || $2 ~ /^v/ }
/^GIT binary patch/ { binary = 1 }
place == "header" {
	if ($0 == "From: " author) from = 1
	if (/^Date: .*[0-9]/) date = 1
	if ($0 ~ wanted) subject = 1
	if (/^$/) place = "body"
	next
}
place == "body" && /^---$/ { place = "stat"; next }
place == "body" {
	if (tolower($0) ~ /^(signed-off|tested|reviewed|acked)-by:/) tags = 1
	if (!/^$|^[A-Z][a-z]+(-[a-z]+)*: |^Link:/) lines++
	if (/^Assisted-by: LLM( |$)/) assisted = 1
}
place == "stat" && /^diff --git / { place = "diff" }
place == "stat" && NF && lost == "" && !/^ .*\|/ && !/^ [0-9]+ files? changed/ && !/^ (create|delete|mode|rewrite)/ {
	lost = $0
}
END { finish() }
