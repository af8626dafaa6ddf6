#!/usr/bin/env python3
"""Prints the ten slowest tests of the given JUnit reports."""

import sys
import xml.etree.ElementTree as xml
from pathlib import Path

tests = []
for path in map(Path, sys.argv[1:]):
    for suite in xml.parse(path).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            tests.append((float(case.get("time", 0)), f"{path.stem}: {suite.get('name')} {case.get('name')}"))

print("slowest ten tests:")
for seconds, name in sorted(tests, reverse=True)[:10]:
    print(f"{seconds:9.2f} s  {name}")
