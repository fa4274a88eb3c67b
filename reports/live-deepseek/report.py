"""The findings of a live check as Markdown."""

from __future__ import annotations

from typing import Any


def render(result: dict[str, Any]) -> str:
    """One section a question; what was not asked says so."""
    found = result["findings"]
    parts = [
        f"# DeepSeek's API, asked live on {result['date']}",
        "`make live-deepseek` asked what the documentation leaves open. One account, one hour of one day: what is "
        "below was seen then, and is no promise of the service.",
        _table(
            ("", ""),
            [
                ("endpoint, model", f"{result['endpoint']}, {result['model']}"),
                ("requests", result["requests"]),
                (
                    "cost, at most",
                    f"USD {result['used_usd']} (dearest peak price, no hits); cap USD {result['cap_usd']}",
                ),
                ("balance", result["balance"] or "not read"),
                ("failed requests", len(result["failures"])),
                ("ended", result["ended"]),
            ],
        ),
    ]
    for name, title, section in (
        ("usage_shape", "Where usage is in a stream", _usage_shape),
        ("template_overhead", "What the chat template adds", _overhead),
        ("granularity", "Granularity of hits", _granularity),
        ("common_prefix", "A+B, A+C, A+D", _common_prefix),
        ("next_turn", "A second turn", _next_turn),
        ("building", "How soon a prompt is hit", lambda f: _rows(f, "after_s", "seconds after the answer")),
        ("lifetime", "Is a unit still there after a minute?", lambda f: _rows(f, "idle_s", "seconds without use")),
    ):
        parts += [f"## {title}", section(found[name]) if found.get(name) else "Not asked."]
    if result["failures"]:
        parts += ["## Failed requests", "\n".join(f"- {_cell(text)}" for text in result["failures"])]
    return "\n\n".join(parts) + "\n"


def _usage_shape(found: dict[str, Any]) -> str:
    return _table(
        ("", "usage is on", "null on the others", "its fields", "delta fields", "comments"),
        [
            (
                name.replace("_", " "),
                shape["usage_on"],
                "yes" if shape["others_have_usage_null"] else "no",
                ", ".join(shape["usage_fields"]),
                ", ".join(shape["delta_fields"]),
                shape["comments"],
            )
            for name, shape in found.items()
        ],
    )


def _overhead(found: dict[str, Any]) -> str:
    return _table(
        ("messages", "tokens a word", "tokens of the template", "(words, prompt tokens)"),
        [
            (name, one.get("slope"), one.get("overhead_tokens"), " ".join(f"({w}, {t})" for w, t in one["points"]))
            for name, one in found.items()
        ],
    )


def _granularity(found: dict[str, Any]) -> str:
    rows = [(row["aimed_at"], row["prompt"], row["hit"]) for row in found["rows"]]
    return (
        f"Common divisor of all hits: {_shown(found['common_divisor_of_hits'])}. Shortest prompt with a hit: "
        f"{_shown(found['shortest_prompt_with_a_hit'])} tokens. Most tokens left after a hit: "
        f"{_shown(found['most_tokens_after_a_hit'])}.\n\n"
    ) + _table(("aimed at", "prompt tokens", "hit the second time"), rows)


def _common_prefix(found: dict[str, Any]) -> str:
    documented = "Documented: a miss, a miss, and a hit on A."
    return documented + "\n\n" + _table(("request", "hit"), list(found["hits"].items()))


def _next_turn(found: dict[str, Any]) -> str:
    return _table(("", "tokens"), [(name.replace("_", " "), value) for name, value in found.items()])


def _rows(found: dict[str, Any], field: str, title: str) -> str:
    return _table((title, "hit"), [(row[field], row["hit"]) for row in found["rows"]])


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return " ".join(_shown(value).replace("|", "\\|").split())


def _shown(value: Any) -> str:
    return "not reported" if value is None else str(value)
