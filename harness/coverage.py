#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Which lines that the series add did no test reach?

coverage.py TREE LINES REASONS MARKDOWN KTAP

TREE is the git tree with the tag base, LINES what `gcov --json-format --stdout` printed.
REASONS has a line for each line of code that no test can reach, separated by tabs:
file, function, code, reason.
"""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict


def added_lines(tree):
    """{file: {line number: text}} of what is new since base."""
    diff = subprocess.run(["git", "-C", tree, "diff", "-U0", "--no-renames", "base", "HEAD", "--",
                           "mm", "include", "arch/x86", ":!mm/tests"],
                          check=True, capture_output=True, text=True).stdout
    added = defaultdict(dict)
    path, number = None, 0
    for line in diff.splitlines():
        hunk = re.match(r"@@ -\S+ \+(\d+)", line)
        if line.startswith("+++ "):
            path = line[6:]
        elif hunk:
            number = int(hunk[1])
        elif line.startswith("+"):
            added[path][number] = line[1:]
            number += 1
    return added


def counted_lines(tree, path):
    """{file: {line number: (count, function)}}; an inline function counts in all objects."""
    counts = defaultdict(dict)
    with open(path) as stream:
        for text in stream:
            for file in json.loads(text)["files"]:
                name = re.sub(r"^(\.\./|\./)+", "", os.path.normpath(file["file"]))
                name = name.replace(os.path.realpath(tree) + "/", "")
                for line in file["lines"]:
                    old = counts[name].get(line["line_number"], (0, ""))
                    counts[name][line["line_number"]] = (old[0] + line["count"],
                                                         line.get("function_name") or old[1])
    return counts


def read_reasons(path):
    reasons = {}
    with open(path) as stream:
        for line in stream:
            if line.strip() and not line.startswith("#"):
                file, function, code, reason = line.rstrip("\n").split("\t")
                reasons[file, function, code] = reason
    return reasons


def function_name(name):
    """As in the source: without what the compiler appended."""
    return re.sub(r"\..*", "", name)


def unreached(added, counts):
    for number, text in sorted(added.items()):
        count, function = counts.get(number, (1, ""))
        if not count:
            yield number, function_name(function), text.strip()


def write(path, lines):
    with open(path + ".tmp", "w") as out:
        out.write("\n".join(lines) + "\n")
    os.replace(path + ".tmp", path)


def main(tree, lines, reasons_path, markdown, ktap):
    added, counts = added_lines(tree), counted_lines(tree, lines)
    reasons, used = read_reasons(reasons_path), set()
    table, rows, results, open_lines = [], [], ["TAP version 13"], 0
    for n, file in enumerate(sorted(f for f in added if set(added[f]) & set(counts[f])), 1):
        code = set(added[file]) & set(counts[file])
        missed = list(unreached(added[file], counts[file]))
        failed = False
        for number, function, text in missed:
            key = (file, function, text)
            used.add(key)
            reason = reasons.get(key)
            rows.append(f"| {file}:{number} | {function} | `{text.replace('|', chr(92) + '|')}` | {reason or '**new test needed**'} |")
            if not reason:
                failed = True
                open_lines += 1
                results.append(f"# {file}:{number}: {function}: {text}")
        table.append(f"| {file} | {len(code)} | {len(code) - len(missed)} | {100 * (len(code) - len(missed)) / len(code):.1f} % |")
        results.append(f"{'not ' if failed else ''}ok {n} {file}: no line is left out without a reason")
    results.append(f"1..{len(table)}")
    for key in sorted(set(reasons) - used):
        results.insert(1, f"# the reason is not needed any more: {key[0]}: {key[1]}: {key[2]}")
    write(ktap, results)
    write(markdown, ["# Lines that the series add, and that tests reach", "",
                     "    make coverage", "",
                     "compiles the files that the series touch with gcov, boots the kernel (x86-64), and runs",
                     "the selftests of the series and upstream's `cow`. What boots before them, and KUnit, does",
                     "not count. Lines without code of their own are left out.", "",
                     "| file | lines with code | reached | |", "|---|--:|--:|--:|"] + table +
          ["", f"## Not reached: {len(rows)}, of these without a reason: {open_lines}", ""] +
          (["| line | function | code | reason |", "|---|---|---|---|"] + rows if rows else []))
    for line in results:
        if line.startswith(("#", "not")):
            print(line)


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    main(*sys.argv[1:])
