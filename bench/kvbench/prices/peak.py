"""Whether a moment is peak: windows of hours by weekday, dated, with the holidays that are none. All in UTC."""

from __future__ import annotations

from datetime import date, datetime, time

import msgspec


class HolidaysUnknown(Exception):
    """The book does not say whether a date that decides is a holiday."""


class Holidays(msgspec.Struct, frozen=True, kw_only=True):
    """Public holidays by UTC date; what is outside [known_from, known_until) is not known."""

    name: str
    known_from: date
    known_until: date
    days: frozenset[date]
    source: str = ""


class PeakPhase(msgspec.Struct, frozen=True, kw_only=True):
    """What was peak during [start, end), end None = still. hours: half-open windows of a day. weekdays: Monday is 0.

    A window never crosses midnight, so that one date decides on it.
    """

    name: str
    start: datetime
    end: datetime | None
    hours: tuple[tuple[time, time | None], ...]
    """An end of None is the day's end."""
    weekdays: frozenset[int]
    holidays: Holidays | None = None
    status: str = ""
    source: str = ""

    def holds(self, moment: datetime) -> bool:
        return self.start <= moment and (self.end is None or moment < self.end)

    def is_peak(self, moment: datetime) -> bool:
        """Raises HolidaysUnknown."""
        clock = moment.time()
        if not any(begin <= clock and (end is None or clock < end) for begin, end in self.hours):
            return False
        day = moment.date()
        if day.weekday() not in self.weekdays:
            return False
        if self.holidays is None:
            return True
        if not self.holidays.known_from <= day < self.holidays.known_until:
            raise HolidaysUnknown(
                f"whether {day} is a public holiday, and so off-peak, is not in the book: its list "
                f'"{self.holidays.name}" covers {self.holidays.known_from} up to {self.holidays.known_until}'
            )
        return day not in self.holidays.days
