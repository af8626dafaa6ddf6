//! What goes in front of which message: the live block, its words, and when what stands there already is enough.
//!
//! A *live block* is one marker line and the values of the slots that differ from the last ones a reader of the prompt
//! has seen. It stands in front of somebody's own bytes inside the same message and is never changed once written.
//! Where values come from and where records are kept is not known here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::names;
use super::records::{Record, Written};
use super::slots::{Placed, SlotIdx, Value};

/// A tool loop sees its first time for this long.
pub(super) const LOOP_S: i64 = 60;

/// The last value of each slot that a prompt shows, and since when.
#[derive(Debug, Default)]
pub(super) struct Visible(BTreeMap<SlotIdx, Shown>);

#[derive(Debug)]
struct Shown {
    text: Arc<str>,
    written_at: i64,
}

/// What time it is where the house stands.
#[derive(Clone, Copy, Debug)]
pub(in crate::prompt) struct Zone<'a> {
    pub(in crate::prompt) offset_s: i32,
    /// As people write it: `CET`, `+01:00`.
    pub(in crate::prompt) name: &'a str,
}

impl Visible {
    /// What a prompt with these records in it shows at its end.
    pub(super) fn of<'a>(chain: impl Iterator<Item = &'a Record>) -> Visible {
        let mut visible = Visible::default();
        for record in chain {
            for (slot, text) in record.written.iter().flat_map(|written| &written.entries) {
                visible.0.insert(*slot, Shown { text: text.clone(), written_at: record.laid_at });
            }
        }
        visible
    }

    /// The slots that must be written now. `in_loop`: something follows the user's message, and its clocks may be old.
    pub(super) fn differing(&self, placed: &Placed, in_loop: bool, now: i64) -> Vec<SlotIdx> {
        let differs = |&slot: &SlotIdx| {
            let value = &placed.values[usize::from(slot)];
            match self.0.get(&slot) {
                None => !value.text.is_empty(),
                Some(shown) if in_loop && placed.clocks.contains(&slot) => {
                    shown.text != value.text && (now - shown.written_at).abs() > LOOP_S
                }
                Some(shown) => shown.text != value.text,
            }
        };
        (0..placed.values.len() as SlotIdx).filter(differs).collect()
    }

    /// The block that writes `slots`; `None` without any.
    pub(super) fn write(
        &self,
        slots: &[SlotIdx],
        values: &[Value],
        now: i64,
        zone: Zone,
        count_tokens: &dyn Fn(&str) -> usize,
    ) -> Option<Written> {
        if slots.is_empty() {
            return None;
        }
        let mut text = marker(now, zone);
        let mut label: Option<&Arc<str>> = None;
        for &slot in slots {
            let value = &values[usize::from(slot)];
            if value.is_in_marker {
                continue;
            }
            let last = self.0.get(&slot).map_or("", |shown| &shown.text);
            let is_empty = value.text.is_empty();
            let own = value.label.as_ref().filter(|_| !is_empty || names::begins_with_entry(last));
            if let Some(own) = own.filter(|&own| label != Some(own)) {
                let _ = write!(text, "\n{own}");
            }
            label = own;
            for line in names::gone(last, &value.text) {
                let _ = write!(text, "\n{line}");
            }
            if !is_empty {
                let _ = write!(text, "\n{}", value.text);
            }
        }
        // An empty line parts it from what somebody wrote.
        text.push_str("\n\n");
        let entries = slots.iter().map(|&slot| (slot, values[usize::from(slot)].text.clone())).collect();
        Some(Written { n_tokens: count_tokens(&text), text: text.into(), entries })
    }
}

/// Tokens of these records' blocks that say what a later one, or one that writes `slots`, says anew.
pub(super) fn n_stale_tokens(chain: &[&Record], slots: &[SlotIdx]) -> usize {
    let mut said: Vec<SlotIdx> = slots.to_vec();
    let mut n_tokens = 0;
    for written in chain.iter().rev().filter_map(|record| record.written.as_ref()) {
        let n_bytes: usize = written.entries.iter().map(|(_, text)| text.len()).sum();
        let n_stale: usize =
            written.entries.iter().filter(|(slot, _)| said.contains(slot)).map(|(_, text)| text.len()).sum();
        n_tokens += (written.n_tokens * n_stale).checked_div(n_bytes).unwrap_or(0);
        said.extend(written.entries.iter().map(|(slot, _)| *slot));
    }
    n_tokens
}

/// `[As of Monday 2026-11-30 18:27 CET:]`
fn marker(now: i64, zone: Zone) -> String {
    const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let local = now + i64::from(zone.offset_s);
    let (days, seconds) = (local.div_euclid(24 * 3600), local.rem_euclid(24 * 3600));
    let weekday = WEEKDAYS[days.rem_euclid(7) as usize];
    let (year, month, day) = date(days);
    let (hour, minute) = (seconds / 3600, seconds / 60 % 60);
    format!("[As of {weekday} {year:04}-{month:02}-{day:02} {hour:02}:{minute:02} {}:]", zone.name)
}

/// Year, month and day of the Gregorian calendar, from days since 1970-01-01.
///
/// Years are counted from March, so that the leap day is the last of its year and all months but the last have the
/// lengths of 153 days in five; 146,097 days are 400 years.
fn date(days: i64) -> (i64, i64, i64) {
    let since_march_0 = days + 719_468;
    let era = since_march_0.div_euclid(146_097);
    let day_of_era = since_march_0.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marker_names_day_time_and_zone() {
        let check = |now, offset_s, expected: &str| assert_eq!(marker(now, Zone { offset_s, name: "Z" }), expected);
        check(0, 0, "[As of Thursday 1970-01-01 00:00 Z:]");
        check(1_709_164_799, 0, "[As of Wednesday 2024-02-28 23:59 Z:]");
        check(1_709_164_799, 1, "[As of Thursday 2024-02-29 00:00 Z:]");
        check(1_796_059_670, 3600, "[As of Monday 2026-11-30 18:27 Z:]");
        check(-1, 0, "[As of Wednesday 1969-12-31 23:59 Z:]");
    }
}
