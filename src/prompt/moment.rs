//! A moment: what time it is, and how the clock on the house's wall shows it.
//!
//! The one place that reads the clock and asks for the zone; all that plans takes a moment as an argument.

use std::borrow::Cow;
use std::time::Duration;

use super::live::Zone;

const DAY_S: i64 = 24 * 60 * 60;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Seconds since 1970, UTC.
    pub unix_s: i64,
    /// What the house's clock is ahead of UTC.
    pub offset_s: i32,
    /// As people write it: `CET`, `+03`.
    pub zone: Cow<'static, str>,
}

impl Moment {
    /// Now, in the zone of this process (`TZ`, else the system's, else UTC).
    pub fn now() -> Moment {
        let now = jiff::ZonedDateTime::now();
        Moment {
            unix_s: now.timestamp().as_second(),
            offset_s: now.offset().seconds(),
            zone: now.strftime("%Z").to_string().into(),
        }
    }

    pub const fn utc(unix_s: i64) -> Moment {
        Moment { unix_s, offset_s: 0, zone: Cow::Borrowed("UTC") }
    }

    /// Days since 1970 on the house's calendar.
    pub fn day(&self) -> i64 {
        (self.unix_s + i64::from(self.offset_s)).div_euclid(DAY_S)
    }

    /// Until the house's calendar shows another day; at least one second.
    pub(super) fn until_midnight(&self) -> Duration {
        let of_day = (self.unix_s + i64::from(self.offset_s)).rem_euclid(DAY_S);
        Duration::from_secs((DAY_S - of_day) as u64)
    }

    /// In UTC, as wire formats have it: `2026-11-30T17:27:05Z`.
    pub fn rfc3339(&self) -> String {
        jiff::Timestamp::from_second(self.unix_s).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
    }

    /// `2026-11-30`
    pub(super) fn date(&self) -> String {
        self.write(self.unix_s, "%Y-%m-%d")
    }

    /// `2026-11-30 18:27`
    pub(super) fn minute(&self) -> String {
        self.write(self.unix_s, "%Y-%m-%d %H:%M")
    }

    /// A moment near this one, with its date if it is of another day: `14:02`, `2026-11-29 14:02`.
    pub(super) fn tell(&self, unix_s: i64) -> String {
        let other = Moment { unix_s, ..self.clone() };
        self.write(unix_s, if other.day() == self.day() { "%H:%M" } else { "%Y-%m-%d %H:%M" })
    }

    fn write(&self, unix_s: i64, format: &str) -> String {
        let offset = jiff::tz::Offset::from_seconds(self.offset_s).unwrap_or(jiff::tz::Offset::UTC);
        let timestamp = jiff::Timestamp::from_second(unix_s).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        offset.to_datetime(timestamp).strftime(format).to_string()
    }

    pub(super) fn zone(&self) -> Zone<'_> {
        Zone { offset_s: self.offset_s, name: &self.zone }
    }
}
