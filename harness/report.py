#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Read KTAP and count, list or report what is in it.

report.py count FILE...             "N passed, N failed, N skipped"; fails if a
                                    case failed or if there is none
report.py list FILE...              a list for harness/baseline/: the results of
                                    the base kernel; several files are several
                                    runs of the same, what differs in them varies
report.py check PARTS BASELINE DIR  junit.xml and summary.md of `make check` in DIR

KTAP is what kselftest's runner writes (a program's results behind "# "), what
KUnit writes (indented), and flat lists of results. A case is the innermost
result; a program that fails without a failed case is a failed case too.
PARTS has a line a part of the check: name, file, exit status, seconds, log.
"""

import os
import re
import sys
from collections import Counter
from xml.sax.saxutils import escape, quoteattr

RESULT = re.compile(r"^(not )?ok\b ?(\d+)?(?: -)? ?(.*)$")
DIRECTIVE = re.compile(r"\s*#\s*(SKIP|XFAIL|TODO|TIMEOUT|exit=|incomplete:|not run:)\s*(.*)$", re.I)
# The same on each run and machine: no addresses, no times.
VARIES = [(re.compile(r"0x[0-9a-f]{4,}", re.I), "0x..."),
          (re.compile(r"\b\d+(\.\d+)? ?(ns|us|ms|s|sec|seconds)\b"), "N s"),
          # pagemap_ioctl: how far two threads got.
          (re.compile(r"^transact_test count \d+"), "transact_test count N"),
          (re.compile(r"Extra pages \d+ \([\d.]+%\), extra thread faults \d+"),
           "Extra pages N, extra thread faults N")]


class Case:
    def __init__(self, suite, name, status, why="", text=""):
        self.suite, self.name, self.status, self.why, self.text = suite, name, status, why, text
        self.base = None

    def __str__(self):
        return f"{self.suite}: {self.name}" if self.suite else self.name


def depth(line):
    """How deep a line is nested, and the line without that."""
    level = 0
    while True:
        if line.startswith("# ") and re.match(r"# +(# |not ok\b|ok\b|TAP version|KTAP version|\d+\.\.\d)", line):
            line, level = line[2:], level + 1
        elif line.startswith("    ") and re.match(r" +(# |not ok\b|ok\b|KTAP|TAP|\d+\.\.\d)", line):
            line, level = line[4:], level + 1
        else:
            return level, line


def parse(path):
    cases, names = [], Counter()
    pending, text = [], []  # results that wait for the one around them

    def add(suite, name, status, why, diag):
        for pattern, plain in VARIES:
            name = pattern.sub(plain, name)
        key = (suite, name)
        names[key] += 1
        if names[key] > 1:
            name = f"{name} ({names[key]})"
        cases.append(Case(suite, name, status, why, diag))

    with open(path, errors="replace") as file:
        for raw in file:
            raw = raw.rstrip("\r\n")
            level, line = depth(raw)
            m = RESULT.match(line)
            if not m:
                text.append(re.sub(r"^# ?", "", line))
                continue
            name, why = m[3].strip(), ""
            status = "fail" if m[1] else "pass"
            d = DIRECTIVE.search(name)
            if d:
                name = name[:d.start()].strip()
                why = f"{d[1]} {d[2]}".replace("= ", "=").strip()
                if d[1].upper() in ("SKIP", "XFAIL", "TODO"):
                    status = "skip" if d[1].upper() != "TODO" or not m[1] else "skip"
            name = re.sub(r"^selftests: ", "", name)
            diag = "\n".join(text[-60:])
            text = []
            inner = [p for p in pending if p[0] > level]
            pending = [p for p in pending if p[0] <= level]
            if inner:
                # Names of what lies between become part of the suite.
                for p in inner:
                    p[1] = f"{name}" if not p[1] else f"{name}: {p[1]}"
                    p[0] = level
                if status == "fail" and not any(p[3] == "fail" for p in inner):
                    inner.append([level, name, "the program itself", "fail", why, diag])
                pending += inner
            else:
                # "ok 7 # SKIP this and that": the text is the name.
                pending.append([level, "", name or (d and d[2]) or f"case {m[2]}", status, why, diag])
            if level == 0:
                for _, suite, n, s, w, t in pending:
                    add(suite, n, s, w, t)
                pending = []
    # Cut off: what was inside has no end.
    for _, suite, n, s, w, t in pending:
        add(suite, n, s, w, t)
    if pending:
        add("", "the output is cut off", "fail", "", "\n".join(text[-60:]))
    return cases


def tally(cases):
    n = Counter(c.status for c in cases)
    return f"{n['pass']} passed, {n['fail']} failed, {n['skip']} skipped"


def count(files):
    cases = [c for f in files for c in parse(f)]
    print(tally(cases))
    return 1 if not cases or any(c.status == "fail" for c in cases) else 0


def list_results(files):
    runs = [{str(c): c.status for c in parse(f)} for f in files]
    print("# What the tests give on the base kernel: make baseline.")
    print("# varies: not the same in each run, any result is accepted.")
    seen = []
    for run in runs:
        seen += [name for name in run if name not in seen]
    for name in seen:
        results = {run.get(name, "gone") for run in runs}
        print(f"{results.pop() if len(results) == 1 else 'varies'}\t{name}")
    return 0


def read_baseline(path):
    base = {}
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                if not line.startswith("#") and "\t" in line:
                    status, name = line.rstrip("\n").split("\t", 1)
                    base[name] = status
    return base


def compare(cases, base):
    """Mark what the base kernel does too, and add what has gone."""
    seen = set()
    for c in cases:
        seen.add(str(c))
        c.base = base.get(str(c))
        if c.status == "fail" and c.base == "fail":
            c.status, c.why = "skip", "fails on base too"
        elif c.status == "fail" and c.base == "varies":
            c.status, c.why = "skip", "fails now and then on base too"
        elif c.status == "skip" and c.base == "pass":
            c.status, c.why = "fail", f"passes on base, is skipped now: {c.why}"
        elif c.status == "fail" and c.base:
            c.why = f"{'passes' if c.base == 'pass' else 'is skipped'} on base; {c.why}".strip("; ")
    for name, status in base.items():
        if name not in seen and status != "varies":
            suite, _, case = name.rpartition(": ")
            cases.append(Case(suite, case, "fail", f"gone: on base it is a {status}"))


def clean(text):
    return re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd]", "?", text)


def junit(parts):
    out = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for part, cases, seconds, _ in parts:
        n = Counter(c.status for c in cases)
        out.append(f'  <testsuite name={quoteattr(part)} tests="{len(cases)}" failures="{n["fail"]}" '
                   f'errors="0" skipped="{n["skip"]}" time="{seconds}">')
        for c in cases:
            head = f"    <testcase classname={quoteattr(clean(part + ('.' + c.suite if c.suite else '')))} name={quoteattr(clean(c.name))}"
            if c.status == "pass":
                out.append(head + "/>")
            elif c.status == "skip":
                out.append(head + f"><skipped message={quoteattr(clean(c.why))}/></testcase>")
            else:
                out.append(head + f"><failure message={quoteattr(clean(c.why or 'failed'))}>"
                           f"{escape(clean(c.text))}</failure></testcase>")
        out.append("  </testsuite>")
    out.append("</testsuites>")
    return "\n".join(out) + "\n"


def cell(text):
    return clean(text).replace("|", "\\|").replace("\n", " ")


def markdown(parts):
    every = [c for p in parts for c in p[1]]
    out = ["# make check", "", f"**{tally(every)}**", "",
           "| part | passed | failed | skipped | time | log |", "|---|--:|--:|--:|--:|---|"]
    for part, cases, seconds, log in parts:
        n = Counter(c.status for c in cases)
        out.append(f"| {part} | {n['pass']} | {n['fail']} | {n['skip']} | {seconds // 60}m{seconds % 60:02d}s | {log} |")
    for title, wanted in (
            ("Failed", lambda c: c.status == "fail"),
            ("Fails on the base kernel too", lambda c: c.status == "skip" and "on base too" in c.why),
            ("Skipped", lambda c: c.status == "skip" and "on base too" not in c.why),
            ("Fails on the base kernel, passes now", lambda c: c.status == "pass" and c.base == "fail")):
        rows = [(p[0], c) for p in parts for c in p[1] if wanted(c)]
        if rows:
            out += ["", f"## {title} ({len(rows)})", "", "| part | case | |", "|---|---|---|"]
            out += [f"| {p} | {cell(str(c))} | {cell(c.why)} |" for p, c in rows]
    texts = [(p[0], c) for p in parts for c in p[1] if c.status == "fail" and c.text.strip()]
    for part, c in texts[:30]:
        out += ["", f"### {part}: {cell(str(c))}", "", "```", clean(c.text).replace("```", "'''"), "```"]
    return "\n".join(out) + "\n"


def write(path, text):
    with open(path + ".tmp", "w") as file:
        file.write(text)
    os.replace(path + ".tmp", path)


def check(parts_file, baseline, directory):
    parts = []
    with open(parts_file) as file:
        for line in file:
            name, path, status, seconds, log = line.rstrip("\n").split("\t")
            cases = parse(path) if os.path.exists(path) else []
            if name.startswith("kselftest"):
                base = read_baseline(baseline)
                if not base:
                    cases.append(Case("", os.path.basename(baseline), "fail", "there is no list of the base kernel: make baseline"))
                elif cases:
                    compare(cases, base)
            # The comparison with base decides where there is one; else a part
            # that ends badly is a failure whatever its results say.
            failed = any(c.status == "fail" for c in cases)
            if not cases or (int(status) and not failed and not any(c.base for c in cases)):
                text = ""
                if os.path.exists(log):
                    with open(log, errors="replace") as tail:
                        text = "".join(tail.readlines()[-40:])
                cases.append(Case("", f"{name} ran", "fail", f"ended with status {status}"
                                  + ("" if cases else ", without a result"), text))
            parts.append((name, cases, int(seconds), os.path.relpath(log, os.path.join(directory, ".."))))
    write(os.path.join(directory, "junit.xml"), junit(parts))
    write(os.path.join(directory, "summary.md"), markdown(parts))
    every = [c for p in parts for c in p[1]]
    for part, cases, _, _ in parts:
        for c in cases:
            if c.status == "fail":
                print(f"FAILED {part}: {c}" + (f" ({c.why})" if c.why else ""))
    for part, cases, _, _ in parts:
        for why, n in Counter(c.why for c in cases if c.status == "skip").most_common():
            print(f"skipped {part}: {n} x {why or 'no reason given'}")
    fixed = sum(c.status == "pass" and c.base == "fail" for c in every)
    if fixed:
        print(f"{fixed} cases fail on base and pass now")
    print(tally(every))
    return 1 if not every or any(c.status == "fail" for c in every) else 0


def main(argv):
    if len(argv) >= 3 and argv[1] == "count":
        return count(argv[2:])
    if len(argv) >= 3 and argv[1] == "list":
        return list_results(argv[2:])
    if len(argv) == 5 and argv[1] == "check":
        return check(*argv[2:])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv))
