//! Clocks and nonces: lines of a system text that change with every request, known by rule from one line alone.
//!
//! A *clock* says by its words what time or day it is, and lies near `now` in some time zone: 120 s for a time, a day
//! for a date. A *nonce* is a per-request token: a billing header, or an id behind a label such as `request id`.
//! What looks like either but might be the household's own (appointments, `last changed`, serial numbers, counters)
//! is neither: evidence from later requests decides about it. Nothing is read or kept here; `now` is an argument.

mod calendar;
mod nonce;
mod reading;
mod sentence;
#[cfg(test)]
mod tests;
mod value;
mod words;

use std::ops::Range;

/// What makes a line change with every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Volatile {
    Clock,
    Nonce,
}

/// Whether this one line, list mark or heading mark aside, says what time or day it is and nothing else, or is a
/// per-request nonce.
///
/// `line`: without its line end. `now`: seconds since 1970, UTC.
pub(super) fn kind(line: &str, now: i64) -> Option<Volatile> {
    whole(line, Some(now))
}

/// The same for a line that was written at some other time: a clock may say any.
pub(super) fn stored_kind(line: &str) -> Option<Volatile> {
    whole(line, None)
}

fn whole(line: &str, now: Option<i64>) -> Option<Volatile> {
    let body = sentence::body_start(line);
    let mut covered = body;
    let mut found = None;
    for (range, volatile) in find(line, now) {
        if range.start != covered {
            return None;
        }
        covered = range.end;
        // A line with both is called by its first part; either way all of it moves.
        found = found.or(Some(volatile));
    }
    found.filter(|_| covered == line.len())
}

/// The sentences of `line` that are clocks, and a billing header in front of other text, in order.
///
/// Ranges are bytes of `line`, on character borders, disjoint; each takes the white space behind it along, so that
/// what remains reads on. The first may begin behind a list mark, never inside quotation marks.
pub(super) fn parts(line: &str, now: i64) -> Vec<(Range<usize>, Volatile)> {
    find(line, Some(now))
}

/// Whether the line holds the form of a clock, near now or not: for a stored body, whose time has passed.
pub(super) fn looks_like_clock(line: &str) -> bool {
    holds(line, Volatile::Clock)
}

/// Whether the line holds a token that was made for one request.
pub(super) fn looks_like_nonce(line: &str) -> bool {
    holds(line, Volatile::Nonce)
}

fn holds(line: &str, wanted: Volatile) -> bool {
    find(line, None).iter().any(|(_, volatile)| *volatile == wanted)
}

fn find(line: &str, now: Option<i64>) -> Vec<(Range<usize>, Volatile)> {
    let body = sentence::body_start(line);
    let mut found = Vec::new();
    let mut from = body;
    if let Some(end) = nonce::end(line, body, now) {
        found.push((body..end, Volatile::Nonce));
        from = end;
    }
    sentence::clocks(line, from, now, |range| found.push((range, Volatile::Clock)));
    found
}
