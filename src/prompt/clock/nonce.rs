//! Nonces: tokens made for one request or session that tell the model nothing.
//!
//! Known by their label or, on a line of their own, by a form nobody writes by hand. Counters cannot be told from one
//! line, and keys, serial numbers and addresses belong to the household: none of them is a nonce here.

use super::calendar;
use super::sentence;
use super::words::{self, Cue};

/// Shortest random token worth the name: 64 bits in hex.
const TOKEN_LEN_MIN: usize = 16;

/// Where the nonce that begins at `body` ends, the white space behind it included. All of the line must be the nonce,
/// except that text may follow a billing header: some clients join their system blocks without a line break.
pub(super) fn end(line: &str, body: usize, now: Option<i64>) -> Option<usize> {
    let rest = &line[body..];
    if let Some(end) = billing_header(rest) {
        return Some(body + end);
    }
    (is_labelled_token(rest) || (body == 0 && is_lone_id(rest.trim(), now))).then_some(line.len())
}

/// `x-anthropic-billing-header: cc_version=2.1.36; cc_entrypoint=cli; cch=a1b2c;`, in any version of its fields.
fn billing_header(text: &str) -> Option<usize> {
    const NAME: &str = "x-anthropic-";
    let starts = text.get(..NAME.len()).is_some_and(|start| start.eq_ignore_ascii_case(NAME));
    let (name, fields) = text.split_once(':').filter(|_| starts)?;
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return None;
    }
    let mut end = name.len() + 1;
    let mut n_fields = 0;
    let mut rest = fields;
    loop {
        let field = rest.trim_start();
        let len = field.find(|c: char| c == ';' || c.is_whitespace()).unwrap_or(field.len());
        let Some((key, _)) = field[..len].split_once('=') else { break };
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-') {
            break;
        }
        n_fields += 1;
        rest = field[len..].strip_prefix(';').unwrap_or(&field[len..]);
        end = text.len() - rest.len();
    }
    (n_fields > 0).then(|| end + (text.len() - end - text[end..].trim_start().len()))
}

/// `request id: <token>`, `"trace_id": "<token>",`, `<session>…</session>`, `| Nonce | <token> |`.
fn is_labelled_token(text: &str) -> bool {
    // Most lines are shorter than a token with its label, or have no digit.
    if text.len() < TOKEN_LEN_MIN || !text.bytes().any(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let from = sentence::decor_end(text, 0);
    let Some((label_end, Cue::Nonce)) = words::cue(text, from) else { return false };
    let value = text[label_end..].trim_start_matches(|c: char| c.is_whitespace() || "\"'`*_".contains(c));
    let Some(value) = value.strip_prefix([':', '=', '>', '|']) else { return false };
    let value = value.trim_matches(|c: char| c.is_whitespace() || "\"'`*|,;.()[]{}".contains(c));
    let value = value.split_once("</").map_or(value, |(value, _)| value);
    is_uuid(value) || is_random(value)
}

/// An id on a line of its own: only forms that no person writes and no device prints on its label.
fn is_lone_id(text: &str, now: Option<i64>) -> bool {
    // Hex of 40 characters is left out: a commit may be named on a line of its own.
    let is_hash = matches!(text.len(), 32 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_uuid(text) || is_fresh_ulid(text, now) || (is_hash && has_letter_and_digit(text))
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// A ULID says when it was made: one from another day is no request's.
fn is_fresh_ulid(text: &str, now: Option<i64>) -> bool {
    const ALPHABET: &[u8] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    if text.len() != 26 || !text.bytes().all(|byte| ALPHABET.contains(&byte)) {
        return false;
    }
    let digit = |byte: u8| ALPHABET.iter().position(|other| *other == byte).unwrap_or_default() as i64;
    let made_ms = text.bytes().take(10).fold(0, |ms, byte| ms * 32 + digit(byte));
    now.is_none_or(|now| calendar::is_within_a_day(calendar::day_of(made_ms / 1000), now))
}

/// A token out of a random source: a ULID, hex, or letters of both cases and digits well mixed.
fn is_random(text: &str) -> bool {
    if text.len() < TOKEN_LEN_MIN || !has_letter_and_digit(text) {
        return false;
    }
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex || is_fresh_ulid(text, None) || is_mixed(text)
}

/// Base64 and its like. In random text about three of five neighbours differ in kind; in `MorningBriefing2026` few do.
fn is_mixed(text: &str) -> bool {
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Kind {
        Upper,
        Lower,
        Digit,
        Sign,
    }
    let kinds: Option<Vec<Kind>> = text
        .bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' => Some(Kind::Upper),
            b'a'..=b'z' => Some(Kind::Lower),
            b'0'..=b'9' => Some(Kind::Digit),
            b'+' | b'/' | b'_' | b'=' | b'-' => Some(Kind::Sign),
            _ => None,
        })
        .collect();
    let Some(kinds) = kinds else { return false };
    // Signs also join the words of a name: `Movie-Night-2026`.
    let n_changes = kinds.windows(2).filter(|pair| pair[0] != pair[1] && !pair.contains(&Kind::Sign)).count();
    kinds.contains(&Kind::Upper) && kinds.contains(&Kind::Lower) && n_changes * 3 >= kinds.len()
}

fn has_letter_and_digit(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit()) && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}
