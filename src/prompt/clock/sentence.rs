//! Sentences of a line: where they begin, and which of them say what time or day it is.
//!
//! A clock *sentence* is a cue, a value and nothing else but a zone, a place or a closing mark; or, as a whole line, a
//! date with a time. What a value means is told in `value`.

use std::ops::Range;

use super::reading::Reading;
use super::value;
use super::words::{self, Cue};

/// Asides in front of a cue: `Note: the …`.
const ASIDES_MAX: usize = 3;

/// Where the text of a line begins behind indents, list, heading and quotation marks.
pub(super) fn body_start(line: &str) -> usize {
    let mut at = 0;
    loop {
        let rest = line[at..].trim_start();
        at = line.len() - rest.len();
        let mark = rest.find(|c| !matches!(c, '#' | '>' | '-' | '*' | '+' | '•' | '–')).unwrap_or(0);
        let number = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let len = if mark > 0 {
            mark
        } else if (1..=2).contains(&number) && rest[number..].starts_with([')', '.']) {
            number + 1
        } else {
            return at;
        };
        // `30. November 2026, 15:09` begins with no list mark.
        let behind = &rest[len..];
        let word = len + (behind.len() - behind.trim_start().len());
        let is_month = number > 0 && matches!(words::word(rest, word), Some((_, words::Word::Month(_))));
        if !behind.starts_with(char::is_whitespace) || is_month {
            return at;
        }
        at += len;
    }
}

/// Where brackets, quotation marks, emphasis and the like in front of a sentence's first word end.
pub(super) fn decor_end(text: &str, from: usize) -> usize {
    text[from..].find(char::is_alphanumeric).map_or(text.len(), |len| from + len)
}

/// Calls `found` for every clock sentence of `line` behind byte `from`.
pub(super) fn clocks(line: &str, from: usize, now: Option<i64>, mut found: impl FnMut(Range<usize>)) {
    let mut at = from;
    let mut quotes = Quotes::default();
    while at < line.len() {
        let is_first = at == from;
        let end = if quotes.is_open { None } else { clock_end(line, at, is_first, now) };
        // Half of a quotation or of a bracket is never taken.
        let end = end.filter(|end| is_balanced(&line[at..*end]));
        let next = match end {
            Some(end) => {
                found(at..end);
                end
            }
            None => sentence_end(line, at, &mut quotes),
        };
        at = next;
    }
}

/// Where the clock sentence that begins at `at` ends, the white space behind it included.
fn clock_end(line: &str, at: usize, is_first: bool, now: Option<i64>) -> Option<usize> {
    let start = decor_end(line, at);
    let first = line[start..].chars().next()?;
    // Behind a full stop, small letters go on with the sentence: `approx. now`.
    if !is_first && first.is_lowercase() {
        return None;
    }
    if let Some((cue, behind)) = announced(line, start) {
        let (reading, value_end) = value::read(line, behind, cue == Cue::Now)?;
        let is_linked =
            line[behind..].trim_start_matches(['"', '\'', '*', '`', '_', ' ']).starts_with([':', '=', '|', '>'])
                || line[behind..].trim_start().starts_with('(');
        let says_now = match cue {
            Cue::Now => reading.has_time() || reading.has_date() || reading.has_weekday() || reading.has_stamp(),
            Cue::Today => reading.has_date() || reading.has_weekday(),
            Cue::Label => is_linked && reading.has_time() && !reading.is_round(),
            Cue::Stamp => reading.has_stamp() || reading.has_time() && reading.has_date(),
            Cue::Aside | Cue::Nonce => false,
        };
        return accept(line, &reading, value_end, now).filter(|_| says_now);
    }
    // Without a cue: a whole line of date and time.
    if !is_first || !(first.is_ascii_digit() || words::word(line, start).is_some()) {
        return None;
    }
    let (reading, value_end) = value::read(line, start, false)?;
    accept(line, &reading, value_end, now)
        .filter(|end| reading.has_time() && reading.has_date() && !reading.is_round() && *end == line.len())
}

fn accept(line: &str, reading: &Reading, value_end: usize, now: Option<i64>) -> Option<usize> {
    let end = close(line, value_end)?;
    now.is_none_or(|now| reading.is_near(now)).then_some(end)
}

/// The cue at `from`, asides skipped, and where it ends.
fn announced(line: &str, from: usize) -> Option<(Cue, usize)> {
    let mut at = from;
    for _ in 0..=ASIDES_MAX {
        match words::cue(line, at)? {
            (end, Cue::Aside) => {
                let rest = line[end..].trim_start_matches(|c: char| c.is_whitespace() || ":,*_–—-".contains(c));
                at = line.len() - rest.len();
            }
            (end, cue) => return Some((cue, end)),
        }
    }
    None
}

/// The end of a sentence whose value ends at `from`: `None` if anything else is said in it.
fn close(line: &str, from: usize) -> Option<usize> {
    const CLOSING: &str = ")]}\"'`*_|»”“’";
    let rest = &line[from..];
    if rest.chars().all(|c| c.is_whitespace() || CLOSING.contains(c) || ",;.!\\>/".contains(c)) {
        return Some(line.len());
    }
    if let Some(tag) = rest.trim_start_matches(|c: char| CLOSING.contains(c)).strip_prefix("</") {
        let (name, behind) = tag.split_once('>')?;
        return (name.chars().all(|c| c.is_alphanumeric() || "_- ".contains(c)) && behind.trim().is_empty())
            .then_some(line.len());
    }
    let stop = rest.trim_start_matches(|c: char| CLOSING.contains(c)).strip_prefix(['.', '!'])?;
    let behind = stop.trim_start_matches(|c: char| CLOSING.contains(c));
    let next = behind.trim_start();
    (next.len() < behind.len()).then(|| line.len() - next.len())
}

fn is_balanced(sentence: &str) -> bool {
    let is_even = |mark: &str| sentence.matches(mark).count().is_multiple_of(2);
    let is_paired = |open: &[char], close: &[char]| sentence.matches(open).count() == sentence.matches(close).count();
    is_even("\"")
        && is_even("`")
        && is_even("*")
        && is_even("**")
        && sentence.matches(['„', '“', '”']).count().is_multiple_of(2)
        && is_paired(&['«', '(', '[', '{'], &['»', ')', ']', '}'])
}

#[derive(Default)]
struct Quotes {
    is_open: bool,
}

/// Where the sentence after this one begins; follows quotation marks on the way.
fn sentence_end(line: &str, from: usize, quotes: &mut Quotes) -> usize {
    let bytes = line.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'"' | b'`' => quotes.is_open = !quotes.is_open,
            // „ “ ” are E2 80 9E, 9C, 9D; « and » are C2 AB and C2 BB.
            0xe2 if bytes[at..].starts_with("„".as_bytes()) => quotes.is_open = true,
            0xe2 if bytes[at..].starts_with("“".as_bytes()) => quotes.is_open = !quotes.is_open,
            0xe2 if bytes[at..].starts_with("”".as_bytes()) => quotes.is_open = false,
            0xc2 if bytes[at..].starts_with("«".as_bytes()) => quotes.is_open = true,
            0xc2 if bytes[at..].starts_with("»".as_bytes()) => quotes.is_open = false,
            b'.' | b'!' | b'?' => {
                let behind = &line[at + 1..];
                let closed = behind.trim_start_matches(['"', '\'', '”', '“', '»', ')', ']', '*', '_', '`']);
                let next = closed.trim_start();
                if next.len() < closed.len() || next.is_empty() {
                    let n_marks = behind.len() - closed.len();
                    if behind[..n_marks].contains(['"', '”', '“', '»', '`']) {
                        quotes.is_open = false;
                    }
                    return line.len() - next.len();
                }
            }
            _ => {}
        }
        at += 1;
    }
    line.len()
}
