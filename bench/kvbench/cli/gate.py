"""`kvbench gate`: are new runs worse than a baseline?"""

from __future__ import annotations

from typing import Annotated

import typer

from kvbench.cli.gate_outputs import GateOutputs, GithubOption, JunitOption, MarkdownOption, OpenMetricsOption
from kvbench.cli.output import say, verdict_code


def gate(
    new: Annotated[
        list[str], typer.Argument(metavar="NEW...", help="Runs to judge: directories, ids, globs, or result files.")
    ],
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="BASE,...", help="Runs to judge against: a comma list or a glob; may be given again."),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPR", help="METRIC.STAT>+3%, METRIC<-0.02, METRIC>1%; may be given again."),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPR",
            help="What must hold: ttft.p95<2s of the new runs; ttft<2s of a request that counts in the goodput.",
        ),
    ] = None,
    treatment: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD[=VALUE]", help="A field of run.json that is meant to differ between the sides."),
    ] = None,
    prices: Annotated[
        list[str] | None,
        typer.Option(metavar="BOOK", help="Of cost: a bundled price book or a TOML. Without: all bundled ones."),
    ] = None,
    allow_order: Annotated[
        bool, typer.Option("--allow-order", help="Accept runs that are not interleaved, such as stored ones.")
    ] = False,
    junit: JunitOption = None,
    markdown: MarkdownOption = None,
    openmetrics: OpenMetricsOption = None,
    github: GithubOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge NEW runs against a baseline: exit 0 pass, 1 fail, 3 inconclusive or refused."""
    import msgspec

    from kvbench.analysis.gate.expression import parse_fail_if, parse_slo
    from kvbench.analysis.gate.judge import judge
    from kvbench.analysis.gate.sources import load_side
    from kvbench.analysis.gate.validity import Treatment
    from kvbench.analysis.metrics import PRICED
    from kvbench.analysis.slo import Slo
    from kvbench.errors import UsageError
    from kvbench.prices.load import load_prices
    from kvbench.render.gatetext import gate_lines
    from kvbench.render.jsonout import json_text

    outputs = GateOutputs(junit, markdown, openmetrics, github).check()
    wanted = [parse_slo(text) for text in slo or ()]
    slos = tuple(goal for goal in wanted if isinstance(goal, Slo))
    gates = [parse_fail_if(text) for text in fail_if or ()]
    gates += [goal for goal in wanted if not isinstance(goal, Slo)]
    treatments = [Treatment.parse(text) for text in treatment or ()]
    if not gates:
        raise UsageError("nothing to judge by", hint="for example --fail-if 'ttft.geomean>+3%' --slo 'ttft.p95<2s'")
    relative = [gate.expr for gate in gates if gate.kind != "value"]
    if relative and not baseline:
        raise UsageError(f"{relative[0]} needs a baseline", hint="--baseline RUN,RUN,... or --baseline 'runs/*-base-*'")
    price_list = load_prices(prices) if prices or any(gate.metric.word in PRICED for gate in gates) else None
    base = load_side(baseline or (), slos, price_list)
    judged = judge(base, load_side(new, slos, price_list), gates, treatments=treatments, allow_order=allow_order)
    outputs.write(msgspec.to_builtins(judged))
    if json:
        say(json_text(judged))
    else:
        say("\n".join(gate_lines(msgspec.to_builtins(judged))))
    raise typer.Exit(verdict_code(judged.verdict))
