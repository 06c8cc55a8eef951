#!/usr/bin/env python3
"""Checks tests/field_failures.md, the table of failures that users of other servers met, against the tests.

    check_field_failures.py [--root REPOSITORY]   exits 1 and lists what does not agree
    check_field_failures.py --self-test           plants faults in a scratch tree and expects to find each of them

The table names every row, FF-001 to FF-156, once. The last cell of a row is one of
    `file` Suite.Name, Suite.Name; `file` ...   its tests; files are relative to tests/
    waits: FEATURE                              the feature that will own it
    cannot be: WORDS (`file` Symbol)            the place in the sources that makes it so; relative to the repository
followed by any remark in parentheses. A test of the table says the row in its name (FF007_...), in its body or in the
comment right above it ("FF-007"); a test that says a row is in the table under that row.
"""

import argparse
import pathlib
import re
import sys
import tempfile

NUM_ROWS = 156
FEATURES = {
    "models and text",
    "HTTP",
    "metrics",
    "several ranks",
    "tenants",
}

TEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
MENTION = re.compile(r"\bFF-(\d{3})\b|FF(\d{3})(?=_)")
ROW = re.compile(r"^\| FF-(\d{3}) \|(.*)\|\s*$", re.MULTILINE)
REFERENCE = re.compile(r"`([^`]+)`((?:\s*,?\s*\w+\.\w+)+)")
PLACE = re.compile(r"\(`([^`]+)` ([\w:]+)\)")


def mentions(text):
    return {int(a or b) for a, b in MENTION.findall(text)}


def tests_of(text):
    """{'Suite.Name': rows that it mentions} of a source file, and the rows that are mentioned outside every test."""
    lines = text.splitlines(keepends=True)
    starts, offset, comment = [], 0, None
    for line in lines:
        match = TEST.match(line)
        if match:
            starts.append((offset if comment is None else comment, f"{match[1]}.{match[2]}"))
        if line.startswith("//"):
            comment = offset if comment is None else comment
        else:
            comment = None
        offset += len(line)
    found = {}
    for (begin, name), end in zip(starts, [s for s, _ in starts[1:]] + [len(text)]):
        found[name] = mentions(text[begin:end])
    outside = mentions(text[: starts[0][0]] if starts else text)
    return found, outside


def is_built(path, root):
    """Whether a source is in the build: the CMakeLists.txt of its folder, or of one above, globs it or names it."""
    folder = path.parent
    while not (folder / "CMakeLists.txt").is_file():
        if folder == root:
            return False
        folder = folder.parent
    text = (folder / "CMakeLists.txt").read_text(encoding="utf-8")
    globs = "baton_test(" in text and "SOURCES" not in text
    return globs or "/*_test.cc" in text or "/*.cc" in text or path.name in text


def check(root):
    problems = []
    tests = root / "tests"
    table = tests / "field_failures.md"
    text = table.read_text(encoding="utf-8")
    if "(field_failures.md)" not in (tests / "README.md").read_text(encoding="utf-8"):
        problems.append("tests/README.md does not link field_failures.md")
    rows = {}
    for number, rest in ROW.findall(text):
        if int(number) in rows:
            problems.append(f"FF-{number} is in the table twice")
        rows[int(number)] = rest.split("|")[-1].strip()
    for number in range(1, NUM_ROWS + 1):
        if number not in rows:
            problems.append(f"FF-{number:03} is not in the table")
    for number in sorted(set(rows) - set(range(1, NUM_ROWS + 1))):
        problems.append(f"FF-{number:03} is no row of the reference")

    sources = {}
    for path in sorted(tests.rglob("*")):
        if path.suffix not in (".cc", ".h") or not path.is_file():
            continue
        name = path.relative_to(tests).as_posix()
        sources[name], outside = tests_of(path.read_text(encoding="utf-8"))
        for number in sorted(outside):
            problems.append(f"tests/{name} mentions FF-{number:03} outside of a test")

    named = set()
    for number, cell in sorted(rows.items()):
        row = f"FF-{number:03}"
        if cell.startswith("waits: "):
            feature = cell[len("waits: ") :].split("(")[0].strip()
            if feature not in FEATURES:
                problems.append(f"{row} waits for '{feature}', which is none of {sorted(FEATURES)}")
            continue
        if cell.startswith("cannot be: "):
            places = PLACE.findall(cell)
            if not places:
                problems.append(f"{row} cannot be, but the place that makes it so is not named")
            for file, symbol in places:
                path = root / file
                if not path.is_file() or symbol.split("::")[-1] not in path.read_text(encoding="utf-8"):
                    problems.append(f"{row}: {file} has no {symbol}")
            continue
        references = REFERENCE.findall(cell)
        if not references:
            problems.append(f"{row} has neither a test nor an owner")
        for file, names in references:
            if file not in sources:
                problems.append(f"{row}: there is no tests/{file}")
                continue
            if not is_built(tests / file, root):
                problems.append(f"{row}: tests/{file} is in no CMakeLists.txt")
            for test in re.findall(r"\w+\.\w+", names):
                if test not in sources[file]:
                    problems.append(f"{row}: tests/{file} has no {test}")
                elif number not in sources[file][test]:
                    problems.append(f"{row}: tests/{file} {test} does not say that it is of this row")
                named.add((number, file, test))
    for file, found in sources.items():
        for test, numbers in found.items():
            for number in sorted(numbers):
                if (number, file, test) not in named:
                    problems.append(f"tests/{file} {test} mentions FF-{number:03}, but is not in that row of the table")
    return problems


def self_test():
    good = {
        "tests/README.md": "see [here](field_failures.md)\n",
        "tests/a_test.cc": (
            "// What this file is.\n\n// FF-001. A sentence.\nTEST(A, One) {\n}\n\n"
            "TEST_F(A, FF002_Two) {\n  // also FF-003\n}\n"
        ),
        "tests/CMakeLists.txt": "baton_test(a_test LABEL unit)\n",
        "src/a.cc": "void Place() {}\n",
    }
    cells = {1: "`a_test.cc` A.One", 2: "`a_test.cc` A.FF002_Two (a remark)", 3: "`a_test.cc` A.FF002_Two"}
    cells[4] = "cannot be: nobody can (`src/a.cc` A::Place)"
    faults = [
        ("is not in the table", lambda f, c: c.pop(9)),
        ("in the table twice", lambda f, c: c.update({10: c[10] + " |\n| FF-010 | x | waits: HTTP"})),
        ("no row of the reference", lambda f, c: c.update({157: "waits: HTTP"})),
        ("none of", lambda f, c: c.update({9: "waits: a miracle"})),
        ("neither a test nor an owner", lambda f, c: c.update({9: "soon"})),
        ("there is no tests/b_test.cc", lambda f, c: c.update({1: "`b_test.cc` A.One"})),
        ("has no A.Other", lambda f, c: c.update({1: "`a_test.cc` A.One, A.Other"})),
        ("does not say", lambda f, c: c.update({9: "`a_test.cc` A.One"})),
        ("not in that row", lambda f, c: c.update({3: "waits: HTTP"})),
        ("is not named", lambda f, c: c.update({4: "cannot be: trust us"})),
        ("src/a.cc has no", lambda f, c: c.update({4: "cannot be: so (`src/a.cc` Elsewhere)"})),
        ("outside of a test", lambda f, c: f.update({"tests/b.h": "// FF-001\n"})),
        ("in no CMakeLists.txt", lambda f, c: f.update({"tests/CMakeLists.txt": "baton_test(b SOURCES b_test.cc)"})),
        ("does not link", lambda f, c: f.update({"tests/README.md": "nothing\n"})),
    ]
    failed = 0
    for expected, plant in [("", lambda f, c: None)] + faults:
        files, table = dict(good), {n: "waits: HTTP" for n in range(1, NUM_ROWS + 1)} | cells
        plant(files, table)
        with tempfile.TemporaryDirectory() as scratch:
            root = pathlib.Path(scratch)
            files["tests/field_failures.md"] = "".join(f"| FF-{n:03} | seen | {cell} |\n" for n, cell in table.items())
            for name, content in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content, encoding="utf-8")
            problems = check(root)
        right = any(expected in p for p in problems) if expected else not problems
        if not right:
            failed += 1
            print(f"planted '{expected}', found {problems}")
    print(f"{len(faults) + 1 - failed} of {len(faults) + 1} as expected")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[3])
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    problems = check(arguments.root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
