//! Days and zones: how far a written date or time lies from `now` in any time zone people live in.
//!
//! A *local* second or day is what a clock on the wall shows, counted as if the wall stood in UTC. No zone names and
//! no daylight saving rules: both only choose among the offsets listed here.

/// How far a written time may lie from now, in seconds: a request waits in a queue, clocks differ a little.
const NEAR_S: i64 = 120;
const DAY_S: i64 = 86_400;

/// Offsets from UTC in use, in minutes (tz database, civil time, 2026). With all multiples of 15 a third of all times
/// written as `15:09` would be near now by chance; with those that exist it is an eighth.
pub(super) const OFFSETS_MIN: [i64; 41] = [
    -720, -660, -600, -570, -540, -480, -420, -360, -300, -240, -210, -180, -150, -120, -60, 0, 60, 120, 180, 210, 240,
    270, 300, 330, 345, 360, 390, 420, 480, 525, 540, 570, 600, 630, 660, 690, 720, 765, 780, 825, 840,
];

/// A span of local seconds: `15:09` lasts 60 s, `15:09:20` one.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) start: i64,
    pub(super) last: i64,
}

impl Span {
    fn is_near(self, local: i64) -> bool {
        self.start - NEAR_S <= local && local <= self.last + NEAR_S
    }

    /// `offset_s`: the zone the text names, if it names one.
    pub(super) fn is_now(self, now: i64, offset_s: Option<i64>) -> bool {
        match offset_s {
            Some(offset) => self.is_near(now + offset),
            None => OFFSETS_MIN.iter().any(|minutes| self.is_near(now + minutes * 60)),
        }
    }

    /// The same for a span of a day whose date is not told.
    pub(super) fn is_now_of_any_day(self, now: i64, offset_s: Option<i64>) -> bool {
        let today = day_of(now);
        // Local days reach from yesterday to tomorrow, and a span at midnight is near one day further.
        (today - 2..=today + 2).any(|day| self.on(day).is_now(now, offset_s))
    }

    pub(super) fn on(self, day: i64) -> Span {
        Span { start: self.start + day * DAY_S, last: self.last + day * DAY_S }
    }
}

/// The UTC day of a second, counted from 1970-01-01.
pub(super) fn day_of(now: i64) -> i64 {
    now.div_euclid(DAY_S)
}

pub(super) fn is_within_a_day(day: i64, now: i64) -> bool {
    (day - day_of(now)).abs() <= 1
}

/// 0 is Monday.
pub(super) fn weekday_of(day: i64) -> u8 {
    (day + 3).rem_euclid(7) as u8
}

/// Days since 1970-01-01 of a Gregorian date, or `None` if there is no such day.
pub(super) fn day(year: i64, month: i64, day_of_month: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let n_days = match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(leap),
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=n_days).contains(&day_of_month) || !(1970..=9999).contains(&year) {
        return None;
    }
    // Years counted from March, so that the leap day is a year's last: months then have 153 days in every five.
    let march_year = if month > 2 { year } else { year - 1 };
    let march_month = (month + 9) % 12;
    let days = march_year * 365 + march_year / 4 - march_year / 100 + march_year / 400;
    Some(days + (153 * march_month + 2) / 5 + day_of_month - 1 - 719_468)
}

/// Day `day_of_month`.`month` of the year that brings it nearest to now, if that is within a day.
pub(super) fn near_day(month: i64, day_of_month: i64, now: i64) -> Option<i64> {
    let today = day_of(now);
    let year = 1970 + today * 400 / 146_097;
    (year - 1..=year + 1).filter_map(|year| day(year, month, day_of_month)).find(|day| (day - today).abs() <= 1)
}
