//! A moment: what time it is, and how the clock on the house's wall shows it.
//!
//! The one place that reads the clock and asks for the zone; all that plans takes a moment as an argument.

use std::borrow::Cow;

use super::live::Zone;

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

    pub(super) fn zone(&self) -> Zone<'_> {
        Zone { offset_s: self.offset_s, name: &self.zone }
    }
}
