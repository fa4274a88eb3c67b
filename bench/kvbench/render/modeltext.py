"""A model's account (analysis/models/report.py) as text: three figures apart, and the derivation line by line."""

from __future__ import annotations

from typing import Any

from kvbench.render.text import safe

LABEL = 14
INDENT = " " * LABEL


def amount(value: float | None) -> str:
    """`389,120`, `3,514.25`; None is not reported."""
    if value is None:
        return "not reported"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4f}".rstrip("0").rstrip(".")


def size(value: float) -> str:
    """`2.73 MB`, decimal units as memory budgets are quoted in; whole bytes below a kilobyte."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {unit}" if value < 1000 * 10**power else f"{value / 10**power:,.0f} {unit}"
    return f"{amount(value)} B"


def model_lines(report: dict[str, Any]) -> list[str]:
    title = f" ({report['title']})" if report["title"] else ""
    lines = [
        f"{safe(report['name'])}{title}: {report['architecture']}, cache {report['cache_dtype']}",
        *_figures(report),
        *_ranks(report["tensor_parallel"]),
        *_context(report["context"], report["tensor_parallel"]["ranks"]),
        "derivation",
        *(f"  {safe(step['text'])}" for step in report["derivation"]),
    ]
    for layout in report["allocated"]:
        lines.append(f"  {layout['engine']}, {layout['layout']}:")
        lines += [f"    {line}" for line in layout["derivation"]]
    lines += [f"{'assumed':<{LABEL}}{safe(text)}" for text in report["assumed"]]
    lines += [f"{'source':<{LABEL}}{s['what']}: {safe(s['source'])} ({s['status']})" for s in report["sources"]]
    return lines


def _figures(report: dict[str, Any]) -> list[str]:
    claimed = report["claimed"]
    if claimed is None:
        told = "no figure of the vendor is known"
    else:
        told = f"{amount(claimed['bytes_per_token'])} B/token" + (f" ({claimed['text']})" if claimed["text"] else "")
    per_session = report["bytes_per_session"]
    session = f" + {amount(per_session)} B/session ({size(per_session)})" if per_session else ", nothing a session"
    lines = [
        f"{'claimed':<{LABEL}}{told}",
        f"{'architecture':<{LABEL}}{amount(report['bytes_per_token'])} B/token{session}",
    ]
    split = report["tensor_parallel"]["ranks"] > 1
    for i, layout in enumerate(report["allocated"]):
        label = "allocated" if i == 0 else ""
        rank = f" ({amount(layout['bytes_per_token_per_rank'])} a rank)" if split else ""
        told = f"{amount(layout['bytes_per_token'])} B/token{rank}: {layout['engine']}, {layout['layout']}"
        lines.append(f"{label:<{LABEL}}{told}")
    if report["allocated_remark"]:
        label = INDENT if report["allocated"] else f"{'allocated':<{LABEL}}"
        lines.append(f"{label}{report['allocated_remark']}")
    return lines


def _ranks(tp: dict[str, Any]) -> list[str]:
    if tp["ranks"] == 1:
        return []
    each = f"{amount(tp['bytes_per_token_per_rank'])} B/token + {amount(tp['bytes_per_session_per_rank'])} B/session"
    whole = f"{amount(tp['bytes_per_token_all_ranks'])} + {amount(tp['bytes_per_session_all_ranks'])}"
    copies = [
        f"{amount(tp[f'copies_of_{what}_bytes'])} copies of what a {what} takes"
        for what in ("token", "session")
        if tp[f"copies_of_{what}_bytes"] not in (None, 1)
    ]
    told = f"; that is {' and '.join(copies)}" if copies else ", each byte once"
    return [f"{'per rank':<{LABEL}}{each} on each of {tp['ranks']}", f"{INDENT}{whole} on all{told}"]


def _context(context: dict[str, Any] | None, ranks: int) -> list[str]:
    if context is None:
        return []
    exact = f"{amount(context['bytes'])} B ({size(context['bytes'])})"
    share = f"{context['share_of_session_bytes'] * 100:.1f}% of it does not grow any more"
    told = share if context["windows_filled"] else "its windows are not full yet"
    lines = [f"{'session':<{LABEL}}{exact} at {context['tokens']:,} tokens; {told}"]
    if ranks > 1:
        lines.append(f"{INDENT}{amount(context['bytes_per_rank'])} B ({size(context['bytes_per_rank'])}) on each rank")
    return lines


def catalogue_lines(rows: list[dict[str, Any]]) -> list[str]:
    head = ("model", "B/token", "B/session", "cache", "status", "architecture")
    table = [head] + [
        (
            row["name"],
            amount(row["bytes_per_token"]),
            amount(row["bytes_per_session"]),
            row["cache_dtype"],
            "known" if row["status"] == "known" else "from memory",
            row["architecture"],
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in table) for i in range(len(head))]
    right = (False, True, True, False, False, False)
    return [
        "  ".join(
            cell.rjust(width) if r else cell.ljust(width) for cell, width, r in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in table
    ]
