"""Session trees of any shape, as native lines, for properties that hold of all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SECONDS = st.integers(0, 40).map(lambda quarters: quarters / 4)


@st.composite
def trees(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A root with sub-agents two levels deep, joined by a later turn of their parent, or not."""
    lines: list[dict[str, Any]] = []
    names: list[str] = []

    def session(name: str, first: dict[str, Any], depth: int) -> None:
        names.append(name)
        count = draw(st.integers(1, 4))
        own: list[dict[str, Any]] = []
        for turn in range(count):
            line = {"session_id": name, "turn": turn, "input_tokens": 4, "output_tokens": 1, "hash_ids": [len(lines)]}
            if turn:
                line["delay_s"] = draw(SECONDS)
            if draw(st.booleans()):
                line["recorded"] = {"e2e_s": draw(SECONDS)}
            own.append(line | (first if not turn else {}))
        lines.extend(own)
        if depth == 2:
            return
        for number in range(draw(st.integers(0, 2))):
            called = draw(st.integers(0, count - 1))
            child = f"{name}.{number}"
            parent = {"parent": {"session_id": name, "turn": called}, "delay_s": draw(SECONDS)}
            if called + 1 < count and draw(st.booleans()):
                own[draw(st.integers(called + 1, count - 1))].setdefault("after", []).append(child)
            session(child, parent, depth + 1)

    session("r", {}, 0)
    return lines
