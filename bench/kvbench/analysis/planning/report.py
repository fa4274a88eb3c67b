"""The whole plan as the object that `kvbench plan --json` prints and that the terminal shows.

What cannot be worked out from what was given is under `not_computed`, with what it would need.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from kvbench.analysis.models.numbers import plain
from kvbench.analysis.planning.bounds import residence_s, throughput
from kvbench.analysis.planning.capacity import Held, Rank, held, rank_of, room, sessions
from kvbench.analysis.planning.fields import Profile, Traffic
from kvbench.analysis.planning.money import PriceSet, costs, listed, needed_hit_rate, price_set
from kvbench.analysis.planning.pressure import TierSpeed, pressure
from kvbench.analysis.planning.profile import amount
from kvbench.analysis.planning.source import Source
from kvbench.analysis.planning.spending import of_profile, of_task, of_trace
from kvbench.analysis.planning.tiers import Tiers, rule
from kvbench.analysis.planning.traffic import Observed
from kvbench.analysis.planning.work import Share, Work, given_work, trace_work
from kvbench.errors import UsageError
from kvbench.traces.curve.measure import Measured


class Plan:
    """A plan that is about to be made; what it is refused for is raised before its trace is read, where it can be.

    Raises InputError (the profile) and UsageError (an option), and RefusedError for a price list that a plan cannot
    count with.
    """

    def __init__(self, profile: Profile, source: Source) -> None:
        self.profile = profile
        self.source = source
        self.observed: Observed | None = None
        self.rank: Rank | None = rank_of(profile, source)
        self.held: Held | None = held(profile.memory, source)
        self.prices: PriceSet | None = None if profile.prices is None else price_set(profile.prices, source)
        self.missing: list[dict[str, str]] = []
        self.notes: list[str] = []
        self.tiers = [
            TierSpeed(
                tier.name,
                amount(source, f"tier[{i}].bytes", tier.bytes),
                amount(source, f"tier[{i}].bytes_per_s", tier.bytes_per_s),
                tier.latency_s,
            )
            for i, tier in enumerate(profile.tier)
        ]

    def report(self, observed: Observed | None = None) -> dict[str, Any]:
        """observed: the trace that the profile names, read."""
        self.observed = observed
        self.notes += () if observed is None else observed.notes
        rows = self._sessions()
        fit = rows[0]["per_rank"] if rows else None
        tiers = self._tiers(fit)
        work = self._work(tiers, fit)
        resident_s = None if work is None else self._resident_s(work)
        per_s = self._throughput(work, fit, resident_s)
        squeezed = self._pressure(self._kept(fit), work, resident_s)
        measured = self._measured(tiers)
        money = self._money(work, measured)
        if not rows and work is None and not money["costs"] and money["needed"] is None:
            if self.missing:
                told = "; ".join(f"{each['what']}: needs {each['needs']}" for each in self.missing)
                raise UsageError(f"nothing to plan: {told}", hint=_HINT)
            raise UsageError("nothing to plan", hint=_HINT)
        return {
            "name": self.profile.name,
            "model": self._model(),
            "memory": self._memory(),
            "trace": self._trace(),
            "sessions": rows,
            "tiers": [] if tiers is None or work is None or measured is None else tiers.rows(work, measured),
            "rule": None if tiers is None or measured is None else rule(measured),
            "request": None if work is None else self._request(work),
            "replay": None if work is None else self._replay(work),
            "throughput": per_s,
            "eviction": []
            if tiers is None
            else tiers.eviction(self.profile.speed, self.profile.replay, self._replay_tokens(), self.prices),
            "pressure": squeezed,
            **money,
            "not_computed": self.missing,
            "notes": self.notes,
        }

    def _measured(self, tiers: Tiers | None) -> Measured | None:
        """The trace's curve at the tiers' capacities, with the capacity for a wanted price's hit rate; once."""
        wanted = self._wanted()
        if self.observed is None or (tiers is None and wanted is None):
            return None
        rates = [wanted["hit_rate"]] if wanted is not None and wanted["hit_rate"] > 0 else []
        return self.observed.measured([] if tiers is None else tiers.blocks, rates)

    def _wanted(self) -> dict[str, Any] | None:
        prices = self.profile.prices
        if self.prices is None or prices is None or prices.wanted is None:
            return None
        return needed_hit_rate(self.prices, prices.wanted, self.source)

    def _lacks(self, what: str, needs: str) -> None:
        self.missing.append({"what": what, "needs": needs})

    # --------------------------------------------------------------------------------------------- what is given

    def _model(self) -> dict[str, Any] | None:
        rank = self.rank
        if rank is None:
            return None
        return {
            "name": rank.model.name,
            "cache_dtype": rank.model.cache_dtype,
            "ranks": rank.ranks,
            "bytes_per_token": plain(rank.per_token),
            "bytes_per_session": plain(rank.per_session),
            "given": list(rank.given),
            "idle_keeps_fixed_bytes": rank.idle_keeps_f,
            "allocated_remark": rank.layouts_remark,
            "assumed": list(rank.model.assumed),
        }

    def _memory(self) -> dict[str, Any] | None:
        if self.held is None:
            return None
        terms = [{"what": what, "bytes": size} for what, size in self.held.terms]
        return {"kv_bytes": self.held.kv, "derived_from": terms or None}

    def _trace(self) -> dict[str, Any] | None:
        seen = self.observed
        if seen is None:
            return None
        return {
            "name": seen.name,
            "path": seen.path,
            "requests": seen.requests,
            "sessions": seen.sessions,
            "trees": seen.trees,
            "live_sessions": seen.live_sessions,
            "span_s": seen.span_s,
            "requests_per_s": seen.requests / seen.span_s if seen.span_s else None,
        }

    # -------------------------------------------------------------------------------------------------- sessions

    def _contexts(self) -> list[tuple[str, int]]:
        if self.observed is not None:
            contexts = self.observed.input_tokens + self.observed.output_tokens
            mean = max(1, round(Fraction(int(contexts.sum()), len(contexts))))
            return [("the trace's mean context", mean), ("its longest", int(contexts.max()))]
        context = self.profile.traffic.context
        return [] if context is None else [("the context", context)]

    def _sessions(self) -> list[dict[str, Any]]:
        contexts = self._contexts()
        needs = [
            name
            for name, there in (
                ("model.name", self.rank),
                ("memory.kv (or hbm, weights, activations, reserve)", self.held),
                ("traffic.trace or traffic.context", contexts or None),
            )
            if there is None
        ]
        if needs:
            self._lacks("sessions per rank", ", ".join(needs))
            return []
        assert self.rank is not None
        assert self.held is not None
        shared = self.profile.traffic.shared_tokens
        if self.observed is not None and not shared:
            self.notes.append(
                "sessions are taken to share nothing, so more may fit: traffic.shared_tokens says how much all of them "
                "begin with"
            )
        if shared > contexts[0][1]:
            raise self.source.wrong(
                "traffic.shared_tokens", f"{shared:,} is more than {contexts[0][0]}, {contexts[0][1]:,}"
            )
        try:
            return [sessions(self.held.kv, self.rank, tokens, shared, what) for what, tokens in contexts]
        except UsageError as error:
            raise self.source.wrong("traffic.shared_tokens", error.message) from None

    # ----------------------------------------------------------------------------------------------------- tiers

    def _tiers(self, fit: int | None) -> Tiers | None:
        seen, rank = self.observed, self.rank
        if seen is None:
            self._lacks("hit rate by tier", "traffic.trace")
            return None
        if rank is None or self.held is None:
            self._lacks("hit rate by tier", "model.name, memory.kv" if rank is None else "memory.kv")
            return None
        if not rank.per_token:
            self._lacks("hit rate by tier", "a model whose cache grows with its tokens")
            return None
        running = self.profile.memory.running
        if running is None and rank.per_session and not rank.idle_keeps_f:
            if seen.live_sessions is None:
                self._lacks("hit rate by tier", "memory.running: how many run at a time is not in the trace")
                return None
            running = min(seen.live_sessions, fit or 0)
            self.notes.append(
                f"fixed bytes in HBM: taken for {running:,} sessions at a time, all that the trace has at its peak or "
                "that fit; memory.running says it otherwise"
            )
        if self.profile.memory.running is not None and (rank.idle_keeps_f or not rank.per_session):
            why = "idle sessions keep their fixed bytes too" if rank.per_session else "a session has no fixed bytes"
            self.notes.append(f"memory.running changes nothing: {why}")
        if rank.per_session:
            self.notes.append(
                "hits are counted block by block; a model with windows or states may find a prefix whole or not at all"
            )
        if any(per_token != rank.per_token for _, per_token in rank.layouts):
            self.notes.append(
                "tokens kept go by the architecture; model.bytes_per_token takes what your engine allocates, or what "
                "was measured"
            )
        contexts = seen.input_tokens + seen.output_tokens
        mean = Fraction(int(contexts.sum()), len(contexts))
        rooms = [room("HBM", self.held.kv, rank, mean, running or 0)]
        rooms += [room(tier.name, tier.size, rank, mean, 0) for tier in self.tiers]
        return Tiers(seen, rooms, self.tiers)

    # ------------------------------------------------------------------------------------------------------ work

    def _replay_tokens(self) -> int:
        said = self.profile.replay.tokens
        return said if said is not None else self.rank.replay_tokens if self.rank is not None else 0

    def _work(self, tiers: Tiers | None, fit: int | None) -> Work | None:
        traffic, speed, replay = self.profile.traffic, self.profile.speed, self.profile.replay
        replay_tokens = self._replay_tokens()
        if replay_tokens and replay.window_lost is None and replay.window_ttl_s is None:
            self.notes.append(
                f"every hit is taken to compute {replay_tokens:,} tokens again, as vLLM does; replay.window_lost or "
                "replay.window_ttl_s says how often it happens elsewhere"
            )
        if not replay_tokens and (replay.window_lost or replay.window_ttl_s):
            self.notes.append(
                "replay is not counted: this model is not known to compute a window again; replay.tokens is"
            )
        if self.observed is not None:
            return None if tiers is None else trace_work(self.observed, tiers.tiering, speed, replay, replay_tokens)
        needs = [f"traffic.{name}" for name in ("new_tokens", "output_tokens") if getattr(traffic, name) is None]
        if needs:
            self._lacks("work of a request", f"traffic.trace, or {' and '.join(needs)}")
            return None
        assert traffic.new_tokens is not None
        assert traffic.output_tokens is not None
        return given_work(
            input_tokens=None if traffic.context is None else traffic.context - traffic.output_tokens,
            new_tokens=traffic.new_tokens,
            output_tokens=traffic.output_tokens,
            pause_s=traffic.pause_s,
            speed=speed,
            replay=replay,
            replay_tokens=replay_tokens,
            shares=self._spread(traffic, fit),
        )

    def _spread(self, traffic: Traffic, fit: int | None) -> tuple[Share, ...]:
        """Where all that can be kept are there, a request's prefix lies in a tier as often as sessions do."""
        kept = self._kept(fit)
        if not self.tiers or not kept or self.rank is None or traffic.context is None:
            return ()
        assert traffic.new_tokens is not None
        assert traffic.output_tokens is not None
        prefix = self.rank.idle(traffic.context - traffic.output_tokens - traffic.new_tokens)
        each = self.rank.idle(traffic.context)
        out = []
        for tier in self.tiers:
            often = int(tier.size // each) / kept
            transfer_s = often * float(prefix / tier.bytes_per_s)
            out.append(
                Share(
                    name=tier.name,
                    tokens=0,
                    requests=0,
                    seconds=transfer_s + often * tier.latency_s,
                    transfer_s=transfer_s,
                )
            )
        self.notes.append(
            f"{kept:,} sessions are kept, {fit or 0:,} of them in HBM: a request's prefix is taken to lie in a tier "
            "as often as sessions do"
        )
        return tuple(out)

    def _request(self, work: Work) -> dict[str, Any]:
        return {
            "input_tokens": work.input_tokens,
            "new_tokens": work.new_tokens,
            "replayed_tokens": work.replayed_tokens,
            "computed_tokens": work.computed_tokens,
            "output_tokens": work.output_tokens,
            "pause_s": work.pause_s,
            "restore_s": work.restore_s,
            "prefill_s": work.prefill_s,
        }

    def _replay(self, work: Work) -> dict[str, Any] | None:
        tokens = self._replay_tokens()
        if not tokens:
            return None
        more = None
        if work.prefill_s is not None and work.prefill_without_replay_s is not None:
            more = work.prefill_s - work.prefill_without_replay_s
        return {
            "tokens": tokens,
            "share_of_requests": work.replaying,
            "tokens_per_request": work.replayed_tokens,
            "seconds_per_request": more,
            "share_of_computed": work.replayed_tokens / work.computed_tokens if work.computed_tokens else None,
        }

    def _resident_s(self, work: Work) -> float | None:
        """R. On a trace a session that pauses may be evicted, which its hits have counted: R is without pauses."""
        waits = self.observed is None
        return residence_s(work, self.profile.speed, self.profile.traffic.residence_s, with_pause=waits)

    def _throughput(self, work: Work | None, fit: int | None, resident_s: float | None) -> dict[str, Any] | None:
        if work is None:
            return None
        kept = fit if self.observed is not None else self._kept(fit)
        found = throughput(work, self.profile.speed, fit, kept, resident_s)
        needs = found.pop("needs")
        if needs is not None:
            self._lacks("requests a second" if "bounds" not in found else "how many requests sessions start", needs)
        return found if "bounds" in found else None

    def _kept(self, fit: int | None) -> int | None:
        """Sessions whose prefix is kept, in HBM or below."""
        if fit is None or self.rank is None:
            return None
        idle = self.rank.idle(self._contexts()[0][1])
        return fit + sum(int(tier.size // idle) for tier in self.tiers) if idle else fit

    def _pressure(self, kept: int | None, work: Work | None, resident_s: float | None) -> dict[str, Any] | None:
        contexts = self._contexts()
        if not contexts:
            return None
        turns: float | None = self.profile.traffic.turns
        each_s = resident_s
        if self.observed is not None:
            turns = self.observed.requests / self.observed.sessions
            each_s = None if work is None or resident_s is None else resident_s + (work.pause_s or 0.0)
        return pressure(
            self.rank,
            contexts[0][1],
            self.tiers,
            self.profile.speed,
            self.prices,
            sessions=kept,
            request_s=each_s,
            turns=turns,
        )

    # ----------------------------------------------------------------------------------------------------- money

    def _money(self, work: Work | None, measured: Measured | None) -> dict[str, Any]:
        if self.prices is None:
            self._lacks("costs", "prices.miss, hit, output and currency; or a book")
            return {"prices": None, "costs": [], "needed": None}
        needed = self._wanted()
        if needed is not None and measured is not None:
            needed |= self._capacity_for(measured)
        task = self.profile.task
        spent = [] if task is None else [of_task(task)]
        if self.observed is None:
            spent += of_profile(self.profile.traffic, self.source)
        elif work is not None:
            spent += of_trace(self.observed, work)
        if not spent:
            self._lacks("costs", "a [task], or traffic whose hits are known")
        return {"prices": listed(self.prices), "costs": costs(self.prices, spent), "needed": needed}

    def _capacity_for(self, measured: Measured) -> dict[str, Any]:
        """The least cache with the wanted hit rate by token; a rate of 0 needs none."""
        least = next((each for each in measured.all.needed if each.by == "token"), None)
        tokens = 0 if least is None else least.capacity_tokens
        per_token = None if self.rank is None else self.rank.per_token
        return {
            "capacity_tokens": tokens,
            "capacity_bytes": None if tokens is None or per_token is None else plain(per_token * tokens),
            "ceiling_token_hit_rate": measured.all.unbounded.token_hit_rate,
        }


_HINT = "kvbench plan PROFILE.toml, or --model, --kv-memory and --context; docs/plan.md has examples"
