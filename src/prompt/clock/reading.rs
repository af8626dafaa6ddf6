//! Readings: what a run of numbers and words says, and whether that is now.
//!
//! A *reading* has at most one date and one time. It does not know the text it came from.

use super::calendar::{self, Span};

/// What a run of numbers and words says.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Reading {
    pub(super) numeric: Option<Numeric>,
    pub(super) day: Option<i64>,
    pub(super) month: Option<i64>,
    pub(super) year: Option<i64>,
    pub(super) weekday: Option<u8>,
    pub(super) month_or_weekday: Option<(u8, u8)>,
    pub(super) time: Option<Time>,
    pub(super) offset_s: Option<i64>,
    pub(super) stamp_s: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Numeric {
    pub(super) year: Option<i64>,
    pub(super) month: i64,
    pub(super) day: i64,
    /// `1/2/2026` is the first of February or the second of January.
    pub(super) is_swappable: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) hour: i64,
    pub(super) minute: Option<i64>,
    pub(super) second: Option<i64>,
}

impl Reading {
    pub(super) fn has_time(&self) -> bool {
        self.time.is_some()
    }

    pub(super) fn has_stamp(&self) -> bool {
        self.stamp_s.is_some()
    }

    pub(super) fn has_weekday(&self) -> bool {
        self.weekday.is_some()
    }

    pub(super) fn has_date(&self) -> bool {
        self.numeric.is_some() || self.day.is_some() && self.month.is_some()
    }

    /// A time to five minutes, without seconds: appointments and departures are, and a clock is in one minute of five.
    pub(super) fn is_round(&self) -> bool {
        self.time.is_some_and(|time| time.second.is_none() && time.minute.unwrap_or(0) % 5 == 0)
    }

    pub(super) fn is_near(&self, now: i64) -> bool {
        if let Some(stamp) = self.stamp_s {
            return Span { start: stamp, last: stamp }.is_now(now, Some(0));
        }
        let mut days = self.dates().filter_map(|(year, month, day)| match year {
            Some(year) => calendar::day(year, month, day),
            None => calendar::near_day(month, day, now),
        });
        let span = self.time.map(Time::span);
        match span {
            Some(span) if self.has_date() => days.any(|day| span.on(day).is_now(now, self.offset_s)),
            Some(span) => span.is_now_of_any_day(now, self.offset_s) && self.is_near_weekday(now).unwrap_or(true),
            None if self.has_date() => days.any(|day| calendar::is_within_a_day(day, now)),
            None => self.is_near_weekday(now).unwrap_or(false),
        }
    }

    fn is_near_weekday(&self, now: i64) -> Option<bool> {
        let today = calendar::day_of(now);
        self.weekday.map(|weekday| (today - 1..=today + 1).any(|day| calendar::weekday_of(day) == weekday))
    }

    /// (year, month, day) as it may be meant.
    fn dates(&self) -> impl Iterator<Item = (Option<i64>, i64, i64)> {
        let named = self.month.zip(self.day).map(|(month, day)| (self.year, month, day));
        let numeric = self.numeric.map(|date| (date.year, date.month, date.day));
        let swapped = self.numeric.filter(|date| date.is_swappable).map(|date| (date.year, date.day, date.month));
        [named, numeric, swapped].into_iter().flatten()
    }

    /// A word that may be a month is one if no other is there.
    pub(super) fn settled(mut self) -> Option<Reading> {
        if let Some((month, weekday)) = self.month_or_weekday {
            if self.month.is_none() && self.numeric.is_none() && self.day.is_some() {
                self.month = Some(i64::from(month));
            } else {
                set(&mut self.weekday, weekday)?;
            }
        }
        let is_valid = self.dates().all(|(year, month, day)| calendar::day(year.unwrap_or(2000), month, day).is_some())
            || self.numeric.is_some_and(|date| date.is_swappable)
                && self.dates().any(|(year, month, day)| calendar::day(year.unwrap_or(2000), month, day).is_some());
        // A lone day, month or year is no date; beside a time it makes no clock either.
        let is_whole = self.day.is_some() == self.month.is_some()
            && (self.year.is_none() || self.has_date())
            && !(self.numeric.is_some() && self.day.is_some());
        (is_valid && is_whole).then_some(self)
    }
}

impl Time {
    fn span(self) -> Span {
        let start = self.hour * 3600 + self.minute.unwrap_or(0) * 60 + self.second.unwrap_or(0);
        let length = match (self.minute, self.second) {
            (_, Some(_)) => 0,
            (Some(_), None) => 59,
            (None, None) => 3599,
        };
        Span { start, last: start + length }
    }
}

/// Fills an empty place; a second value of one kind ends the reading.
pub(super) fn set<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}
