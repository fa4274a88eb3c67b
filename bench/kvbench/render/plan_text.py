"""A plan as text: each figure with the terms it comes from, and what could not be worked out with what it needs."""

from __future__ import annotations

from typing import Any

from kvbench.render.modeltext import amount, size
from kvbench.render.text import NOT_REPORTED, milliseconds, percent, plural, safe, seconds, span

LABEL = 14
NOT_GIVEN = "no speed"


def plan_lines(report: dict[str, Any]) -> list[str]:
    """report: what analysis.planning.report makes."""
    lines = []
    if report["name"]:
        lines.append(_line("plan", safe(report["name"])))
    lines += _model(report["model"])
    lines += _memory(report["memory"])
    lines += _trace(report["trace"])
    lines += _sessions(report["sessions"], report["memory"], report["model"])
    lines += _tiers(report["tiers"], report["rule"], report["model"])
    lines += _eviction(report["eviction"], report["prices"])
    lines += _request(report["request"], report["replay"])
    lines += _throughput(report["throughput"], report["trace"])
    lines += _pressure(report["pressure"], report["prices"])
    lines += _money(report)
    lines += _several("not planned", [f"{each['what']}: needs {each['needs']}" for each in report["not_computed"]])
    return lines + _several("note", [safe(note) for note in report["notes"]])


def _line(label: str, text: str) -> str:
    return f"{label:<{LABEL}} {text}".rstrip()


def _several(label: str, texts: list[str]) -> list[str]:
    return [_line(label if at == 0 else "", text) for at, text in enumerate(texts)]


def _table(label: str, rows: list[list[str]]) -> list[str]:
    """The first row heads the columns; the first column is words, the others are figures."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = []
    for row in rows:
        cells = [
            cell.ljust(w) if at == 0 else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        texts.append("   ".join(cells))
    return _several(label, texts)


def _exact(value: float) -> str:
    """`119,382,016 B (119 MB)`"""
    told = amount(value if isinstance(value, int) else round(value, 2))
    return f"{told} B ({size(value)})" if value >= 1000 else f"{told} B"


def _time(value_s: float) -> str:
    return milliseconds(value_s) if value_s < 0.1 else seconds(value_s)


def _tokens(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def _per_s(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 1000 else f"{value:.4g}/s"


def _model(model: dict[str, Any] | None) -> list[str]:
    if model is None:
        return []
    named = {"bytes_per_token": "B/token", "bytes_per_session": "B/session"}
    given = [named[name] for name in model["given"]]
    whose = f"{' and '.join(given)} as given" if given else f"by its architecture, cache {model['cache_dtype']}"
    rank = f", on each of {model['ranks']} ranks" if model["ranks"] > 1 else ""
    figures = f"{amount(model['bytes_per_token'])} B/token + {amount(model['bytes_per_session'])} B/session"
    lines = [_line("model", f"{safe(model['name'])}: {figures}{rank} ({whose})")]
    return lines + [_line("", f"assumed: {safe(text)}") for text in model["assumed"]]


def _memory(memory: dict[str, Any] | None) -> list[str]:
    if memory is None:
        return []
    terms = memory["derived_from"]
    if terms is None:
        return [_line("memory", f"{_exact(memory['kv_bytes'])} for KV on one rank, as given")]
    width = max(len(f"{term['bytes']:,}") for term in terms)
    texts = [
        f"{'-' if at else ' '} {term['bytes']:>{width},} B   {safe(term['what'])}" for at, term in enumerate(terms)
    ]
    texts.append(f"= {memory['kv_bytes']:>{width},} B   for KV on one rank ({size(memory['kv_bytes'])})")
    return _several("memory", texts)


def _trace(trace: dict[str, Any] | None) -> list[str]:
    if trace is None:
        return []
    live = trace["live_sessions"]
    at_a_time = "" if live is None else f" (at most {live:,} at a time)"
    rate = (
        "" if trace["requests_per_s"] is None else f", {_per_s(trace['requests_per_s'])} over {span(trace['span_s'])}"
    )
    told = f"{plural(trace['requests'], 'request')}{rate}; {plural(trace['sessions'], 'session')}{at_a_time}"
    return [_line("trace", f"{safe(trace['name'])}: {told}")]


def _sessions(rows: list[dict[str, Any]], memory: dict[str, Any] | None, model: dict[str, Any] | None) -> list[str]:
    texts = []
    for row in rows:
        assert memory is not None
        assert model is not None
        once = f", {row['shared_tokens']:,} of them shared" if row["shared_tokens"] else ""
        texts.append(f"{row['per_rank']:,} of {row['tokens']:,} tokens ({row['what']}{once})")
        kv = f"{memory['kv_bytes']:,} B"
        if row["shared_tokens"]:
            kv = f"({kv} - {_exact(row['shared_bytes'])} held once)"
        texts.append(f"  = {kv} / {_exact(row['bytes_each'])} each")
        if row["per_rank_without_fixed_bytes"] is not None:
            without = row["per_rank_without_fixed_bytes"]
            fixed = size(model["bytes_per_session"])
            texts.append(f"  {without:,} without the {fixed} that a running session holds besides its tokens")
        for each in row["by_layout"]:
            texts.append(
                f"  {each['per_rank']:,} by {each['layout']}: {amount(each['bytes_per_token'])} B/token allocated"
            )
    if rows and model is not None and model["allocated_remark"]:
        texts.append(f"allocated: {safe(model['allocated_remark'])}")
    return _several("sessions", texts)


def _tiers(tiers: list[dict[str, Any]], rule: dict[str, Any] | None, model: dict[str, Any] | None) -> list[str]:
    if not tiers or rule is None:
        return []
    rows = [["", "bytes", "tokens kept", "hit there", "hit so far", "requests", "restored in"]]
    rows += [
        [
            safe(tier["name"]),
            size(tier["bytes"]),
            f"{tier['tokens']:,}",
            percent(tier["token_hit_rate"]),
            percent(tier["token_hit_rate_with_those_above"]),
            f"{tier['requests']:,}",
            "-" if at == 0 or not tier["requests"] else _time(tier["restore_s_per_request"]),
        ]
        for at, tier in enumerate(tiers)
    ]
    missed = 1 - tiers[-1]["token_hit_rate_with_those_above"]
    rows.append(["computed", "", "", percent(missed), "", "", ""])
    lines = _table("hits by token", rows)
    first, *below = tiers
    if first["fixed_bytes_of_running"]:
        held = _exact(first["fixed_bytes_of_running"])
        lines.append(
            _line("", f"HBM keeps tokens in what running sessions leave of it: {held} of fixed bytes are theirs")
        )
    lines += [
        _line(
            "", _kept(first, model) + ("; restored in latency + m c / BW, a mean over all requests" if below else "")
        ),
        _line("", f"ceiling {percent(rule['ceiling_token_hit_rate'])}, from {rule['sufficient_tokens']:,} tokens on"),
        _line("  rule", f"{rule['cache']}; {rule['touch']}"),
        _line("", f"{'tiers hold what those above evict: capacities add up; ' if below else ''}{rule['requests']}"),
        _line("", f"blocks of {rule['block_size']:,} tokens ({rule['tokens']}); answers {rule['outputs']}; no warm-up"),
    ]
    return lines


def _kept(tier: dict[str, Any], model: dict[str, Any] | None) -> str:
    per_token = amount(round(tier["bytes_per_token"], 2))
    if tier["fixed_bytes_of_running"]:
        return f"tokens kept = (bytes - fixed bytes) / {per_token} B"
    if model is not None and model["idle_keeps_fixed_bytes"]:
        return f"tokens kept = bytes / {per_token} B: m + F / mean context, idle sessions keep their fixed bytes too"
    return f"tokens kept = bytes / {per_token} B"


def _eviction(found: list[dict[str, Any]], prices: dict[str, Any] | None) -> list[str]:
    """What the trace pays for a cache that is too small, and what the tiers below HBM give back."""
    if not found:
        return []
    priced = [] if prices is None else [f"1M input{_when(phase['when'])}" for phase in prices["phases"]]
    rows = [["", "hits", "computed", "prefill", "restored", *priced]]
    rows += [
        [
            safe(each["what"]),
            percent(each["token_hit_rate"]),
            _tokens(each["computed_tokens"]),
            NOT_GIVEN if each["prefill_s"] is None else _time(each["prefill_s"]),
            _time(each["restore_s"]) if each["restore_s"] else "-",
            *(_money_text(price["price"]) for price in each["input_price_per_million"]),
        ]
        for each in found
    ]
    return _table("of a request", rows)


def _request(request: dict[str, Any] | None, replay: dict[str, Any] | None) -> list[str]:
    if request is None:
        return []
    prompt = "" if request["input_tokens"] is None else f" of {_tokens(request['input_tokens'])}"
    replayed = f" + {_tokens(request['replayed_tokens'])} replayed" if request["replayed_tokens"] else ""
    computed = f" = {_tokens(request['computed_tokens'])}" if replayed else ""
    texts = [
        f"computes {_tokens(request['new_tokens'])}{replayed}{computed}{prompt} tokens, generates "
        f"{_tokens(request['output_tokens'])} (means)"
    ]
    if replay is not None:
        took = "" if replay["seconds_per_request"] is None else f", {_time(replay['seconds_per_request'])} a request"
        share = (
            ""
            if replay["share_of_computed"] is None
            else f": {percent(replay['share_of_computed'])} of what is computed"
        )
        texts.append(
            f"replay: {replay['tokens']:,} tokens on {percent(replay['share_of_requests'])} of requests{share}{took}"
        )
    return _several("a request", texts)


def _throughput(found: dict[str, Any] | None, trace: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    rows = [f"prefill {_time(found['prefill_s'])}, decode {_time(found['decode_s'])} of the machine for each"]
    if found["residence_s"] is not None and found["sessions"] is not None:
        rows.append(
            f"{plural(found['sessions'], 'session')} at a time, each there for {_time(found['residence_s'])} a request"
            + (" (a pause may evict it: see hits)" if trace is not None else ", its pause included")
        )
    rows += [f"  {_per_s(bound['requests_per_s'])} by {safe(bound['name'])}" for bound in found["bounds"]]
    for name in ("disaggregated", "colocated"):
        each = found[name]
        rows.append(f"{name}: {_per_s(each['requests_per_s'])}, bound by {safe(each['binds'])}")
        asked = None if trace is None else trace["requests_per_s"]
        if asked is not None and each["requests_per_s"]:
            share = asked / each["requests_per_s"]
            rows[-1] += f"; the trace asks for {share * 100:.3g}% of it"
    return _several("requests", rows)


def _pressure(found: dict[str, Any] | None, prices: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    texts = []
    evict, reject = found["evict"], found["reject"]
    costs = []
    if evict["recompute_s"] is not None:
        costs.append(f"{_time(evict['recompute_s'])} of prefill")
    if prices is not None:
        more = ", ".join(f"{_money_text(price['cost'])}{_when(price['when'])}" for price in evict["price"])
        costs.append(f"{safe(prices['currency'])} {more} more, all of it billed as misses")
    if costs:
        texts.append(f"evicted: its next request computes all of it, {'; '.join(costs)}")
    for each in found["offload"]:
        times = each["times_quicker_than_computing"]
        quicker = "" if times is None else f"; {times:,.1f} times as quick as computing it"
        texts.append(
            f"offloaded to {safe(each['tier'])}: {size(each['bytes'])} written in {_time(each['write_s'])}, restored "
            f"in {_time(each['restore_s'])}{quicker}; room for {each['sessions']:,}"
        )
    if found["break_even_bytes_per_s"] is not None:
        texts.append(f"any tier above {size(found['break_even_bytes_per_s'])}/s restores quicker than prefill computes")
    if reject["wait_s"] is not None:
        texts.append(
            f"rejected: it waits {_time(reject['wait_s'])} on average until one has ended (each lasts "
            f"{span(reject['session_s'])})"
        )
    if not texts:
        return []
    return _several("no room", [f"for one more session of {found['tokens']:,} tokens:", *(f"  {t}" for t in texts)])


def _when(when: str) -> str:
    return "" if when == "always" else f" {when}"


def _money(report: dict[str, Any]) -> list[str]:
    prices = report["prices"]
    if prices is None:
        return []
    lines = _several(
        "prices",
        [
            f"{safe(prices['currency'])} for 1M tokens{_when(phase['when'])}: "
            f"miss {phase['miss']}, hit {phase['hit']}, output {phase['output']}"
            for phase in prices["phases"]
        ]
        + [safe(prices["source"])],
    )
    if report["costs"]:
        head = ["a", "input", "hits", "output", "when", "cost", "uncached", "1M input"]
        rows = [head]
        for each in report["costs"]:
            for at, phase in enumerate(each["phases"]):
                first = at == 0
                rows.append(
                    [
                        each["what"] if first else "",
                        _tokens(each["input_tokens"]) if first else "",
                        percent(each["hit_rate"]) if first else "",
                        _tokens(each["output_tokens"]) if first else "",
                        phase["when"],
                        _money_text(phase["cost"]),
                        _money_text(phase["cost_uncached"]),
                        _money_text(phase["input_price_per_million"]),
                    ]
                )
        lines += _table("cost", rows)
    needed = report["needed"]
    if needed is not None:
        told = f"{safe(prices['currency'])} {needed['price_per_million']} for 1M input tokens{_when(needed['when'])}"
        lines.append(_line("needed", f"{percent(needed['hit_rate'])} of input hit, for {told}"))
        if "capacity_tokens" in needed:
            tokens, ceiling = needed["capacity_tokens"], needed["ceiling_token_hit_rate"]
            lines.append(
                _line("", f"the trace has it from {tokens:,} tokens of cache on{_in_bytes(needed)}")
                if tokens is not None
                else _line("", f"no cache gives it on the trace: its ceiling is {percent(ceiling)}")
            )
    return lines


def _in_bytes(needed: dict[str, Any]) -> str:
    return "" if needed["capacity_bytes"] is None else f", {size(needed['capacity_bytes'])}"


def _money_text(value: str | None) -> str:
    """Four significant digits, at least three behind the point."""
    if value is None:
        return NOT_REPORTED
    number = float(value)
    return f"{number:.3f}" if number >= 0.1 or not number else f"{number:.4g}" if number >= 1e-4 else f"{number:.3e}"
