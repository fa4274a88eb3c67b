"""Sessions of a trace and what they wait for: order of turns, parents, joins, and that all of it can come to an end."""

from __future__ import annotations

from array import array
from itertools import pairwise

from kvbench.model import Turn
from kvbench.traces.problems import ProblemLog

_NO_PARENT = -1
_UNRESOLVED = -2
_BROKEN = -3
"""A session whose root could not be found (a problem already reported)."""


class Sessions:
    """Every session named in a trace, by a small integer; parallel arrays, because a trace may have millions."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.turns = array("I")
        self.start_s = array("d")
        self._ids: dict[str, int] = {}
        self._parent = array("q")
        self._parent_turn = array("I")
        self._first_line = array("I")
        self._hashed = bytearray()
        self._joins: dict[int, list[tuple[int, int, tuple[int, ...]]]] = {}
        """Session -> (turn, line, sessions it waits for), in order."""
        self._tree_of = array("q")
        self._roots = array("I")

    def add_turn(self, turn: Turn, log: ProblemLog) -> int:
        """Enter the next turn of its session; returns the session's number."""
        session = self._number(turn.session_id)
        expected = self.turns[session]
        if turn.turn != expected:
            what = f'turn {turn.turn} of session "{turn.session_id}" where turn {expected} is due'
            log.error(turn.line, what, field="turn", hint="turns of a session are numbered 0, 1, 2, ... in file order")
        if expected == 0:
            self._first_line[session] = turn.line
            self.start_s[session] = turn.start_s or 0.0
            if turn.parent is not None:
                self._parent[session] = self._number(turn.parent.session_id)
                self._parent_turn[session] = turn.parent.turn
        if turn.after:
            waits = tuple(self._number(name) for name in turn.after)
            self._joins.setdefault(session, []).append((turn.turn, turn.line, waits))
        # A gap is one problem, not one for every turn behind it.
        self.turns[session] = max(expected, turn.turn) + 1
        return session

    def hashed(self, session: int) -> bool:
        return bool(self._hashed[session])

    def set_hashed(self, session: int, hashed: bool) -> None:
        self._hashed[session] = hashed

    def check(self, log: ProblemLog) -> None:
        """What can only be judged at the end of the file; finds every session's tree on the way."""
        self._check_parents(log)
        self._resolve_roots(log)
        self._check_joins(log)

    def roots(self) -> array[int]:
        """Root sessions in file order; valid after check()."""
        return self._roots

    def tree_of_session(self) -> array[int]:
        """Tree of each session, as an index into roots(); negative where there is none. Valid after check()."""
        return self._tree_of

    def _number(self, name: str) -> int:
        number = self._ids.get(name)
        if number is None:
            number = self._ids[name] = len(self.names)
            self.names.append(name)
            self.turns.append(0)
            self.start_s.append(0.0)
            self._parent.append(_NO_PARENT)
            self._parent_turn.append(0)
            self._first_line.append(0)
            self._hashed.append(0)
        return number

    def _check_parents(self, log: ProblemLog) -> None:
        for session, parent in enumerate(self._parent):
            if parent == _NO_PARENT:
                continue
            line, wanted = self._first_line[session], self._parent_turn[session]
            if self.turns[parent] == 0:
                log.error(line, f'no session "{self.names[parent]}" in this trace', field="parent.session_id")
            elif wanted >= self.turns[parent]:
                what = f'session "{self.names[parent]}" has turns 0 to {self.turns[parent] - 1}, not {wanted}'
                log.error(line, what, field="parent.turn")

    def _resolve_roots(self, log: ProblemLog) -> None:
        root_of = array("q", [_UNRESOLVED]) * len(self.names)
        for session in range(len(self.names)):
            path: list[int] = []
            on_path: set[int] = set()
            at = session
            while root_of[at] == _UNRESOLVED and self._parent[at] != _NO_PARENT and at not in on_path:
                path.append(at)
                on_path.add(at)
                at = self._parent[at]
            if at in on_path:
                what = f'session "{self.names[session]}" is its own ancestor'
                log.error(self._first_line[session], what, field="parent")
                root = _BROKEN
            elif root_of[at] != _UNRESOLVED:
                root = root_of[at]
            else:
                root = root_of[at] = at if self.turns[at] else _BROKEN
            for member in path:
                root_of[member] = root
        roots = array("I", (session for session, root in enumerate(root_of) if root == session))
        lines = self._first_line
        if any(lines[a] > lines[b] for a, b in pairwise(roots)):
            roots = array("I", sorted(roots, key=lines.__getitem__))
        self._roots = roots
        tree_of_root = array("q", [-1]) * len(self.names)
        for tree, root in enumerate(roots):
            tree_of_root[root] = tree
        self._tree_of = array("q", (tree_of_root[root] if root >= 0 else -1 for root in root_of))

    def _check_joins(self, log: ProblemLog) -> None:
        suspects: set[int] = set()
        for session, joins in self._joins.items():
            for _, line, waits in joins:
                if self._join_names_are_good(session, line, waits, log) and self._tree_of[session] >= 0:
                    suspects.add(self._tree_of[session])
        if not suspects:
            return
        members: dict[int, list[int]] = {tree: [] for tree in suspects}
        for session, tree in enumerate(self._tree_of):
            if tree in members and self.turns[session]:
                members[tree].append(session)
        for sessions in members.values():
            self._check_ends(sessions, log)

    def _join_names_are_good(self, session: int, line: int, waits: tuple[int, ...], log: ProblemLog) -> bool:
        good = True
        for other in waits:
            name = self.names[other]
            if self.turns[other] == 0:
                log.error(line, f'no session "{name}" in this trace', field="after")
                good = False
            elif self._tree_of[other] != self._tree_of[session]:
                what = f'session "{name}" belongs to another tree; a turn waits for sessions of its own tree'
                log.error(line, what, field="after", hint="a sub-agent's first turn names its parent")
                good = False
        return good

    def _check_ends(self, sessions: list[int], log: ProblemLog) -> None:
        """Let one tree run with every turn taking no time; what cannot end waits for itself."""
        children: dict[int, list[int]] = {}
        for session in sessions:
            if self._parent[session] != _NO_PARENT:
                children.setdefault(self._parent[session], []).append(session)
        done: set[int] = set()
        reached: dict[int, int] = {}
        """Session -> turns ended so far."""
        waiting: dict[int, list[int]] = {}
        ready = [session for session in sessions if self._parent[session] == _NO_PARENT]
        while ready:
            session = ready.pop()
            before = reached.get(session, 0)
            at, block = self._advance(session, before, done)
            reached[session] = at
            for child in children.get(session, ()):
                if before <= self._parent_turn[child] < at:
                    ready.append(child)
            if block is None:
                done.add(session)
                ready.extend(waiting.pop(session, ()))
            else:
                waiting.setdefault(block, []).append(session)
        stuck = [session for session in sessions if session in reached and session not in done]
        for session in stuck[:1]:
            at = reached[session]
            line, waits = next((line, waits) for turn, line, waits in self._joins[session] if turn == at)
            names = ", ".join(f'"{self.names[other]}"' for other in waits if other not in done)
            what = f'turn {at} of session "{self.names[session]}" waits for {names}, which cannot end before it'
            log.error(line, what, field="after", hint="a turn may wait only for sessions that do not wait for it")

    def _advance(self, session: int, at: int, done: set[int]) -> tuple[int, int | None]:
        """The turn this session gets to from `at`, and the session it then waits for (None: it has ended)."""
        for turn, _, waits in self._joins.get(session, ()):
            if turn < at:
                continue
            for other in waits:
                if other not in done:
                    return turn, other
        return self.turns[session], None
