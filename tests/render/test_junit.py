"""JUnit XML: a real parser, a real schema, and text that is none."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st
from tests.render.verdicts import MIXED, REFUSED, gate, judged

from kvbench.render.junit import junit_xml

SCHEMA = xmlschema.XMLSchema(str(Path(__file__).parent.parent / "fixtures" / "junit.xsd"))


def read(verdict: Any) -> ET.Element:
    root = ET.fromstring(junit_xml(verdict).encode())
    SCHEMA.validate(root)
    return root


def test_a_gate_is_a_test_case_and_its_verdict_an_outcome() -> None:
    root = read(MIXED)
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (
        "3",
        "1",
        "0",
        "1",
    )
    fail, skipped, passed = suite.findall("testcase")
    assert [case.get("name") for case in suite.findall("testcase")] == [
        "ttft.geomean>+3%",
        "tpot.p95>+3%",
        "hit_rate<-0.02",
    ]
    failure = fail.find("failure")
    assert failure is not None
    assert (failure.get("message") or "").startswith("0.100 s -> 0.112 s, +12.0% (90% interval +10.0% to +14.0%")
    why = skipped.find("skipped")
    assert why is not None
    assert (why.get("message") or "").startswith("inconclusive: not reported in \\x00\\x07\\x1b[31mred ]]> <script>")
    assert [child.tag for child in passed] == ["system-out"]


def test_a_refusal_is_an_error_of_every_gate() -> None:
    root = read(REFUSED)
    assert root.get("errors") == "2"
    messages = [error.get("message") or "" for error in root.iter("error")]
    assert len(messages) == 2
    assert all("🧨" in message and message.endswith("; b") for message in messages)


def test_the_schema_refuses_what_it_should() -> None:
    bad = ET.fromstring(junit_xml(MIXED).encode())
    del bad[0].attrib["tests"]
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        SCHEMA.validate(bad)


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=60))
def test_any_text_makes_valid_xml(text: str) -> None:
    root = ET.fromstring(junit_xml(judged(gate("refused"), verdict="refused", reasons=(text, "end"))).encode())
    (error,) = root.iter("error")
    assert (error.get("message") or "").endswith("; end")
