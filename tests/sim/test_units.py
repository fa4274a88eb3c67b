from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvbench.sim.units import UnitStore


def chained(text: str) -> list[int]:
    """A key for each prefix, as the engine's chained hashes are."""
    return [hash(text[: n + 1]) for n in range(len(text))]


def serve(store: UnitStore, prompt: str, output: str = "", now_ns: int = 0) -> int:
    """One request whose pieces are letters, from its admission to its end; what it hit."""
    hit = store.find(chained(prompt), now_ns)
    common = store.common_prefix(chained(prompt), now_ns)
    store.persist(chained(prompt), now_ns, common=common)
    if output:
        store.persist(chained(prompt + output), now_ns, after=len(prompt))
    return hit


def hits(store: UnitStore, *prompts: str) -> list[int]:
    return [serve(store, prompt) for prompt in prompts]


def test_the_documented_examples() -> None:
    # A conversation: the second round begins with the whole of the first.
    assert hits(UnitStore(), "AB", "ABC") == [0, 2]
    # One text, three questions: the common part is persisted by the second and hit by the third.
    assert hits(UnitStore(), "AAAB", "AAAC", "AAAD") == [0, 0, 3]


def test_a_hit_is_a_whole_unit_or_nothing() -> None:
    # Everything but the last piece is there, and none of it can be used.
    assert hits(UnitStore(), "ABCDEFGH", "ABCDEFG") == [0, 0]
    # The shorter prompt was a whole input, so it is a unit; of units that fit the longest is hit.
    assert hits(UnitStore(), "AB", "ABCD", "ABCDE", "ABX") == [0, 2, 4, 2]


def test_the_end_of_an_output_is_a_unit() -> None:
    store = UnitStore()
    assert [serve(store, "AB", "CD"), serve(store, "ABCDE"), serve(store, "ABCX")] == [0, 4, 2]


def test_intervals_are_units_of_inputs_and_outputs() -> None:
    store = UnitStore(interval=3)
    serve(store, "ABCDEFGH", "IJKL")  # ends 8 and 12; intervals 3, 6, 9 and 12
    assert [serve(store, text) for text in ("ABCDEFGX", "ABCDX", "ABX", "ABCDEFGHIJX")] == [6, 3, 0, 9]


def test_a_unit_is_hit_only_once_it_is_built() -> None:
    store = UnitStore(build_ns=100)
    serve(store, "AB", now_ns=1000)
    assert [store.find(chained("AB"), now_ns) for now_ns in (1000, 1099, 1100)] == [0, 0, 2]


def test_a_unit_lives_on_from_its_last_hit_and_shorter_ones_do_not() -> None:
    store = UnitStore(ttl_ns=100)
    serve(store, "A", now_ns=0)
    serve(store, "AB", now_ns=10)  # hits A at 10
    assert [store.find(chained("ABC"), now_ns) for now_ns in (109, 208, 307)] == [2, 2, 2]
    assert store.find(chained("AX"), 307) == 0
    assert store.find(chained("ABC"), 407) == 0


def test_what_is_built_late_lives_no_shorter() -> None:
    store = UnitStore(build_ns=50, ttl_ns=100)
    serve(store, "AB", now_ns=0)
    assert store.find(chained("AB"), 149) == 2
    store = UnitStore(build_ns=50, ttl_ns=100)
    serve(store, "AB", now_ns=0)
    assert store.find(chained("AB"), 150) == 0


def test_common_prefixes_are_forgotten_with_their_inputs() -> None:
    for later, hit in ((99, 3), (100, 0)):
        store = UnitStore(ttl_ns=100)
        serve(store, "AAAB", now_ns=0)
        serve(store, "AAAC", now_ns=later)
        assert serve(store, "AAAD", now_ns=later) == hit


def test_a_lost_unit_is_forgotten_and_shorter_ones_are_not() -> None:
    store = UnitStore()
    serve(store, "A")
    serve(store, "AB")
    assert not store.lose(chained("X"), 0)
    assert store.lose(chained("ABC"), 0)
    assert store.find(chained("ABC"), 0) == 1
    assert serve(store, "AB") == 1
    assert store.find(chained("ABC"), 0) == 2  # it was computed again


def test_a_reset_forgets_units_and_inputs() -> None:
    store = UnitStore()
    serve(store, "AAAB")
    store.reset()
    assert hits(store, "AAAB", "AAAC") == [0, 0]
    store.reset()
    assert hits(store, "AAAC", "AAAD", "AAAE") == [0, 0, 3]


def by_brute_force(
    requests: Sequence[tuple[str, str, int]], interval: int | None, build: int, ttl: int | None
) -> list[int]:
    """Independent of the store: plain texts, each with all moments of its life, searched from the start every time."""
    lives: dict[str, list[int]] = {}
    ready: dict[str, int] = {}
    inputs: list[tuple[str, int]] = []
    found = []

    def lives_at(text: str, now: int) -> bool:
        return text in lives and (ttl is None or max(lives[text]) + ttl > now)

    def write(text: str, now: int) -> None:
        if text and not lives_at(text, now):
            ready[text], lives[text] = now + build, [now + build]
        elif text:
            lives[text].append(now)

    for prompt, output, now in requests:
        fitting = [t for t in lives if prompt.startswith(t) and lives_at(t, now) and ready[t] <= now]
        hit = max(fitting, key=len, default="")
        if hit:
            lives[hit].append(now)
        found.append(len(hit))
        common = ""
        for length in range(1, len(prompt) + 1):
            if any(text.startswith(prompt[:length]) and (ttl is None or at + ttl > now) for text, at in inputs):
                common = prompt[:length]
        inputs.append((prompt, now))
        whole = prompt + output
        ends = range(interval, len(whole) + 1, interval) if interval else ()
        for text in (prompt, common, *([whole] if output else []), *(whole[:end] for end in ends)):
            write(text, now)
    return found


@given(
    st.lists(
        st.tuples(st.text("AB", min_size=1, max_size=6), st.text("AB", max_size=3), st.integers(0, 6)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([0, 2]),
    st.sampled_from([None, 3, 7]),
)
def test_hits_equal_brute_force(
    steps: list[tuple[str, str, int]], interval: int | None, build: int, ttl: int | None
) -> None:
    now, requests = 0, []
    for prompt, output, pause in steps:
        now += pause
        requests.append((prompt, output, now))
    store = UnitStore(interval=interval, build_ns=build, ttl_ns=ttl)
    assert [serve(store, *request) for request in requests] == by_brute_force(requests, interval, build, ttl)


def test_without_refresh_a_unit_lives_from_when_it_was_first_written() -> None:
    for refresh, found in ((True, 2), (False, 0)):
        store = UnitStore(ttl_ns=100, refresh_on_hit=refresh)
        for now_ns in (0, 60):
            serve(store, "AB", now_ns=now_ns)
        assert store.find(chained("AB"), 120) == found
