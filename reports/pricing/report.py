"""The figures of results.json as a page."""

# ruff: noqa: E501  (lines of Markdown)

from __future__ import annotations

from typing import Any


def readme(found: dict[str, Any]) -> str:
    return "\n".join(
        [
            "# What a verdict on a bill is worth",
            "",
            "`make pricing-report` makes agent traffic from a seed, bills it with or without a fault, writes the bill to "
            "the files a provider exports, and verifies it. The biller (biller.py) shares nothing with kvbench. 1,000 "
            "requests a bill over three days with peak and off-peak hours; which moment of a request decides (start, "
            "middle, end), clocks (1 s either way), rounding, columns and aliases are drawn.",
            "",
            f"Measured {found['measured']['at']}. Targets missed: {', '.join(found['missed']) or 'none'}.",
            "",
            "## Faults between reported and invoiced",
            "",
            "| fault | invoice | found and named | amount within 2% | largest error | confirmed |",
            "| --- | --- | ---: | ---: | ---: | ---: |",
            *map(_fault, found["faults"]),
            "",
            "Found: disputed, with the fault by its name. The targets (195 of 200, amounts within 2%) are for the hourly "
            "export of a dedicated key and the row a request together, half of the seeds each. On a key that others may "
            "use only what cannot be theirs is disputed, so that amounts are floors there.",
            "",
            "## Honest bills",
            "",
            "Half of them with one or three requests whose streams broke off, of which nobody knows the usage (`cannot "
            "tell`, by intent); where the key is shared, half with requests of others.",
            "",
            "| invoice | bills | confirmed | cannot tell | disputed |",
            "| --- | ---: | ---: | ---: | ---: |",
            *(
                f"| {row['invoice']} | {row['bills']} | {row['confirmed']} | {row['cannot tell']} | {row['disputed']} |"
                for row in found["honest"]
            ),
            "",
            "## Faults between served and reported",
            "",
            "Inference. Expected hits are known to the token (point), or as intervals of up to 0.2% (narrow) or 5% (wide) "
            "of the prompt.",
            "",
            "| fault | expected hits | runs | differs | cannot tell | no difference seen | fault not drawn |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
            *(
                f"| {row['fault']} | {row['knowledge']} | {row['runs']} | {row['differs']} | {row['cannot tell']} | "
                f"{row['no difference seen']} | {row.get('the fault did not happen', 0)} |"
                for row in found["served"]
            ),
            "",
            "## Over real HTTP",
            "",
            "The bundled trace against the simulated endpoint, whose log says what it charged; the bill has ids and amounts "
            "alone. What usage itself overcounts no bill can show: it takes an exact tokenizer.",
            "",
            "| fault | requests | verdict | named | charged too much, USD | found, USD |",
            "| --- | ---: | --- | --- | ---: | ---: |",
            *(
                f"| {row['name']} | {row['requests']} | {row['verdict']} | {', '.join(row['kinds']) or 'nothing'} | "
                f"{row['charged_too_much']} | {row['found']} |"
                for row in found["http"]
            ),
            "",
        ]
    )


def _fault(row: dict[str, Any]) -> str:
    largest = "" if row["largest_off"] is None else f"{row['largest_off']:.2%}"
    return (
        f"| {row['fault']} | {row['invoice']} | {row['found']} of {row['runs']} | {row['within']} | {largest} | "
        f"{row['waved_through']} |"
    )
