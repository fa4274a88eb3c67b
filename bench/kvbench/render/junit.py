"""A gate's verdict as JUnit XML, which CI systems show as tests: a test case a gate."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from kvbench.render.gatetext import gate_lines
from kvbench.render.text import safe

_NOT_XML = re.compile("[\ufffe\uffff]")


def junit_xml(judged: dict[str, Any], suite: str = "kvbench gate") -> str:
    """The JSON object of `kvbench gate` as one suite. fail: a failure; inconclusive: skipped; refused: an error, since
    the test could not be made and a skipped one would look like none. Valid XML 1.0 whatever text is quoted.
    """
    verdicts = [gate["verdict"] for gate in judged["gates"]]
    counts = {
        "tests": str(len(verdicts)),
        "failures": str(verdicts.count("fail")),
        "errors": str(verdicts.count("refused")),
    }
    suites = ET.Element("testsuites", {"name": clean(suite), **counts})
    node = ET.SubElement(suites, "testsuite", {"name": clean(suite), **counts, "skipped": str(_skipped(verdicts))})
    for gate in judged["gates"]:
        _case(node, suite, gate, judged)
    ET.SubElement(node, "system-out").text = clean("\n".join(gate_lines(judged)))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def clean(text: str) -> str:
    """Text of characters that XML 1.0 allows; others as visible escapes, line ends kept."""
    lines = "\n".join(map(safe, text.split("\n")))
    return _NOT_XML.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), lines)


def _skipped(verdicts: list[str]) -> int:
    return verdicts.count("inconclusive")


def _case(suite: ET.Element, name: str, gate: dict[str, Any], judged: dict[str, Any]) -> None:
    case = ET.SubElement(suite, "testcase", {"name": clean(gate["expr"]), "classname": clean(name)})
    alone = {"gates": [gate], "reasons": [], "notes": [], "verdict": gate["verdict"]}
    told = gate_lines(alone)[:-1]
    if gate["verdict"] == "fail":
        node = ET.SubElement(case, "failure", {"type": "regression", "message": clean(" ".join(told[1].split()))})
        node.text = clean("\n".join(told))
    elif gate["verdict"] == "refused":
        reasons = judged["reasons"] or [gate["reason"]]
        node = ET.SubElement(case, "error", {"type": "refused", "message": clean("; ".join(reasons))})
        node.text = clean("\n".join(reasons))
    elif gate["verdict"] == "inconclusive":
        ET.SubElement(case, "skipped", {"message": clean(inconclusive_reason(gate))})
    ET.SubElement(case, "system-out").text = clean("\n".join(told))


def inconclusive_reason(gate: dict[str, Any]) -> str:
    """Why a gate has no verdict, in one sentence."""
    if gate["reason"]:
        return f"inconclusive: {gate['reason']}"
    needed = gate["runs_needed_family"]
    runs = "more than 1,000 runs a side" if needed is None else f"{needed:,} runs a side"
    return f"inconclusive: neither worse beyond doubt nor shown to be within the pass bound; {runs} give 80%"
