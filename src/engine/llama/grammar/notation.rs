//! Defines `Rules`: a grammar in GBNF, llama.cpp's notation, read by llama.cpp's own parser.
//!
//! That parser recurses, repeats and multiplies without limits of its own, so a text is looked through before it goes there. A
//! rule that begins with itself would never come to a first letter: it is found here, for llama.cpp's search for such rules
//! takes for ever on some small grammars, and overlooks some rules.

use std::ptr::NonNull;

use super::super::template::Text;
use crate::engine::{Special, Vocab};
use crate::request::Token;

/// Bytes of a client's own grammar: far more than one that a person wrote, and parsed in milliseconds.
const BYTES_MAX: usize = 64 << 10;
/// Brackets in each other.
const DEPTH_MAX: usize = 64;
/// Elements that repetitions of texts like `"abc"{9}` make: 8 bytes each.
const N_REPEATED_MAX: u64 = 1 << 20;

/// What may stand at one place of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Element {
    /// An alternative ends.
    End,
    Rule(u32),
    /// One of `Rules::ranges`, or none of them.
    Letter {
        from: u32,
        to: u32,
        is_not: bool,
    },
    AnyLetter,
    Token(Token),
    NotToken(Token),
}

/// Rules by number.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) elements: Vec<Element>,
    /// Where the alternatives of each rule begin in `elements`.
    pub(super) alternatives: Vec<Vec<u32>>,
    /// Code points, both ends included.
    pub(super) ranges: Vec<(u32, u32)>,
    pub(super) root: u32,
}

impl Rules {
    /// The reason, if `text` is no grammar. `is_clients`: it has limits that hob's own grammars need not have.
    pub(super) fn parse(text: &str, is_clients: bool, vocab: &dyn Vocab) -> Result<Rules, String> {
        if text.len() > BYTES_MAX && is_clients {
            return Err(format!("the grammar has {} bytes: at most {BYTES_MAX} are allowed", text.len()));
        }
        let text = look_through(text, vocab)?;
        let (mut elements, mut names, mut error) = (Text::EMPTY, Text::EMPTY, Text::EMPTY);
        // SAFETY: `text` outlives the call; the texts that come out are written as its result says.
        let is_parsed = unsafe { hob_grammar_parse(Text::lent(&text), &mut elements, &mut names, &mut error) };
        if !is_parsed {
            return Err(with_place(&error.take(), &text));
        }
        let (elements, names) = (elements.take_bytes(), names.take());
        let names: Vec<&str> = names.lines().collect();
        let Some(root) = names.iter().position(|name| *name == "root") else {
            return Err("there is no rule `root`".into());
        };
        let rules = Rules::of(&elements, root as u32);
        match rules.begins_with_itself() {
            // Behind the underscore stands the number that a part of a rule was given.
            Some(rule) => {
                let name = names[rule].split('_').next().unwrap_or_default();
                Err(format!("the rule `{name}` can begin with itself"))
            }
            None => Ok(rules),
        }
    }

    /// Of llama_grammar_element's (llama-grammar.h).
    fn of(raw: &[u8], root: u32) -> Rules {
        let word = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().expect("four bytes"));
        let pairs: Vec<(u32, u32)> =
            raw.as_chunks::<8>().0.iter().map(|pair| (word(&pair[..4]), word(&pair[4..]))).collect();
        let mut rules = Rules { elements: Vec::new(), alternatives: Vec::new(), ranges: Vec::new(), root };
        let mut is_new_rule = true;
        let mut is_new_alternative = true;
        for (at, &(kind, value)) in pairs.iter().enumerate() {
            if is_new_rule {
                rules.alternatives.push(Vec::new());
            }
            if is_new_rule || is_new_alternative {
                let start = rules.elements.len() as u32;
                rules.alternatives.last_mut().expect("a rule has begun").push(start);
            }
            (is_new_rule, is_new_alternative) = (kind == 0, kind == 1);
            let range = || {
                let upper = pairs.get(at + 1).filter(|(kind, _)| *kind == 5).map_or(value, |(_, upper)| *upper);
                (value, upper)
            };
            match kind {
                0 | 1 => rules.elements.push(Element::End),
                2 => rules.elements.push(Element::Rule(value)),
                3 | 4 => {
                    let from = rules.ranges.len() as u32;
                    rules.ranges.push(range());
                    rules.elements.push(Element::Letter { from, to: from + 1, is_not: kind == 4 });
                }
                6 => {
                    rules.ranges.push(range());
                    if let Some(Element::Letter { to, .. }) = rules.elements.last_mut() {
                        *to += 1;
                    }
                }
                7 => rules.elements.push(Element::AnyLetter),
                8 => rules.elements.push(Element::Token(Token(value.cast_signed()))),
                9 => rules.elements.push(Element::NotToken(Token(value.cast_signed()))),
                // 5, the upper end of a range, was read with the lower one.
                _ => {}
            }
        }
        rules
    }

    /// The elements of an alternative, without its end.
    fn alternative(&self, start: u32) -> impl Iterator<Item = Element> + '_ {
        self.elements[start as usize..].iter().copied().take_while(|element| *element != Element::End)
    }

    /// A rule that can come to itself again before any letter, with more behind it each time.
    fn begins_with_itself(&self) -> Option<usize> {
        let can_be_empty = self.can_be_empty();
        let n_rules = self.alternatives.len();
        // Each rule: those that it may begin with, and whether something stands behind them.
        let mut firsts = vec![Vec::new(); n_rules];
        let mut firsts_of = vec![Vec::new(); n_rules];
        for (rule, starts) in self.alternatives.iter().enumerate() {
            for &start in starts {
                let mut elements = self.alternative(start).peekable();
                while let Some(Element::Rule(first)) = elements.next() {
                    let first = first as usize;
                    firsts[rule].push((first, elements.peek().is_some()));
                    firsts_of[first].push((rule, false));
                    if !can_be_empty[first] {
                        break;
                    }
                }
            }
        }
        // Rules that can come to each other form a circle (Kosaraju's algorithm).
        let mut seen = vec![false; n_rules];
        let mut left = Vec::new();
        (0..n_rules).for_each(|rule| walk_from(rule, &firsts, &mut seen, |rule| left.push(rule)));
        let mut circles = vec![0; n_rules];
        seen.fill(false);
        for &rule in left.iter().rev() {
            walk_from(rule, &firsts_of, &mut seen, |member| circles[member] = rule);
        }
        let grows =
            |rule: &usize| firsts[*rule].iter().any(|&(first, is_more)| is_more && circles[first] == circles[*rule]);
        (0..n_rules).find(grows)
    }

    /// Each rule: whether it has an alternative without a letter.
    fn can_be_empty(&self) -> Vec<bool> {
        let n_rules = self.alternatives.len();
        // Who has a look again when a rule is found to be one.
        let mut users = vec![Vec::new(); n_rules];
        for (rule, starts) in self.alternatives.iter().enumerate() {
            for element in starts.iter().flat_map(|&start| self.alternative(start)) {
                if let Element::Rule(used) = element {
                    users[used as usize].push(rule);
                }
            }
        }
        let mut is_empty = vec![false; n_rules];
        let mut open: Vec<usize> = (0..n_rules).collect();
        while let Some(rule) = open.pop() {
            let can_be = |element: Element| matches!(element, Element::Rule(rule) if is_empty[rule as usize]);
            if !is_empty[rule] && self.alternatives[rule].iter().any(|&start| self.alternative(start).all(can_be)) {
                is_empty[rule] = true;
                open.extend(&users[rule]);
            }
        }
        is_empty
    }
}

/// Tells each node that can be reached from `start` and was not seen yet, after those behind it.
fn walk_from(start: usize, edges: &[Vec<(usize, bool)>], seen: &mut [bool], mut tell: impl FnMut(usize)) {
    if std::mem::replace(&mut seen[start], true) {
        return;
    }
    let mut path = vec![(start, 0)];
    while let Some((node, n_taken)) = path.last_mut() {
        match edges[*node].get(*n_taken) {
            Some(&(next, _)) => {
                *n_taken += 1;
                if !std::mem::replace(&mut seen[next], true) {
                    path.push((next, 0));
                }
            }
            None => {
                tell(*node);
                path.pop();
            }
        }
    }
}

/// Refuses what llama.cpp's parser would not survive, or not in bounded time; gives the text with the names of tokens (`<name>`)
/// as numbers.
fn look_through(text: &str, vocab: &dyn Vocab) -> Result<String, String> {
    if text.contains('\0') {
        return Err("the grammar holds a NUL".into());
    }
    let bytes = text.as_bytes();
    // Behind the end of what begins at `at` and goes on to `end`.
    let quoted = |at: usize, end: u8| {
        let mut at = at + 1;
        while at < bytes.len() && bytes[at] != end {
            at += if bytes[at] == b'\\' { 2 } else { 1 };
        }
        bytes.len().min(at + 1)
    };
    let mut out = String::new();
    let (mut copied, mut at, mut depth) = (0, 0, 0_usize);
    let (mut n_last, mut n_repeated) = (1, 0_u64);
    while let Some(&byte) = bytes.get(at) {
        let from = at;
        at += 1;
        match byte {
            b'"' => at = quoted(from, b'"'),
            b'[' => at = quoted(from, b']'),
            b'#' => at = from + bytes[from..].iter().position(|byte| b"\r\n".contains(byte)).unwrap_or(bytes.len()),
            b'<' => {
                at = from + text[from..].find('>').map_or(1, |end| end + 1);
                let name = &text[from..at];
                if !name.starts_with("<[") && name.len() > 1 {
                    let [token] = vocab.tokenize(name, Special::Parsed)[..] else {
                        return Err(format!("{name} is no token of this vocabulary"));
                    };
                    out += &text[copied..from];
                    out += &format!("<[{}]>", token.0);
                    copied = at;
                }
            }
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b'{' => n_repeated = n_repeated.saturating_add(repetition(&bytes[at..])?.saturating_mul(n_last)),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(format!("the grammar has more than {DEPTH_MAX} brackets in each other"));
        }
        if n_repeated > N_REPEATED_MAX {
            return Err(format!("the grammar's repetitions make more than {N_REPEATED_MAX} letters"));
        }
        if !byte.is_ascii_whitespace() && byte != b'#' {
            n_last = if b"\"[".contains(&byte) { (at - from) as u64 } else { 1 };
        }
    }
    out += &text[copied..];
    Ok(out)
}

/// How often the repetition repeats whose bounds `text` begins with. llama.cpp counts from the least number to the most without
/// comparing them: `{2,1}` would take for ever.
fn repetition(text: &[u8]) -> Result<u64, String> {
    let mut at = 0;
    let skip = |at: &mut usize| {
        while let Some(byte) = text.get(*at).filter(|byte| b" \t\r\n#".contains(byte)) {
            *at += match byte {
                b'#' => text[*at..].iter().position(|byte| b"\r\n".contains(byte)).unwrap_or(text.len()),
                _ => 1,
            };
        }
    };
    let number = |at: &mut usize| {
        skip(at);
        let n = text[(*at).min(text.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = std::str::from_utf8(&text[*at..*at + n]).expect("digits are ASCII");
        *at += n;
        skip(at);
        // A number without end is refused as one by the parser.
        if n == 0 { None } else { Some(digits.parse().unwrap_or(u64::MAX)) }
    };
    let Some(least) = number(&mut at) else { return Ok(1) };
    if text.get(at) != Some(&b',') {
        return Ok(least);
    }
    at += 1;
    match number(&mut at) {
        Some(most) if least > most => {
            Err(format!("the grammar repeats {{{least},{most}}}: at least {least} and at most {most} times"))
        }
        // More than 2,000 is taken as any number.
        Some(most) if most <= 2_000 => Ok(most),
        _ => Ok(least),
    }
}

/// The parser names the place by all that stands behind it.
fn with_place(fault: &str, text: &str) -> String {
    match fault.split_once(" at ") {
        Some((what, rest)) if text.ends_with(rest) => {
            let before = &text[..text.len() - rest.len()];
            let (line, column) = (before.matches('\n').count() + 1, before.rsplit('\n').next().unwrap_or_default());
            format!("the grammar, line {line}, column {}: {what}", column.chars().count() + 1)
        }
        _ => format!("the grammar: {fault}"),
    }
}

/// A regular expression that sets a grammar off, in llama.cpp's hands.
#[derive(Debug)]
pub(super) struct Pattern(NonNull<PatternHandle>);

// SAFETY: plain memory without ties to a thread.
unsafe impl Send for Pattern {}

impl Pattern {
    pub(super) fn new(pattern: &str) -> Result<Pattern, String> {
        let mut error = Text::EMPTY;
        // SAFETY: the text outlives the call, which copies it; `error` is written when null comes back.
        let made = unsafe { hob_pattern_new(Text::lent(pattern), &mut error) };
        NonNull::new(made).map(Pattern).ok_or_else(|| format!("the pattern {pattern:?}: {}", error.take()))
    }

    /// Where in `text` the grammar begins: at the first group that matched something, else at the match.
    pub(super) fn find(&self, text: &[u8]) -> Option<usize> {
        // SAFETY: the handle is alive; the text outlives the call.
        let found = unsafe { hob_pattern_find(self.0.as_ptr(), Text::lent_bytes(text)) };
        usize::try_from(found).ok()
    }
}

impl Drop for Pattern {
    fn drop(&mut self) {
        // SAFETY: made by `hob_pattern_new`, freed once.
        unsafe { hob_pattern_free(self.0.as_ptr()) }
    }
}

#[repr(C)]
struct PatternHandle {
    _private: [u8; 0],
}

// grammar.cpp; as there.
unsafe extern "C" {
    fn hob_grammar_parse(text: Text, elements: *mut Text, names: *mut Text, error: *mut Text) -> bool;
    fn hob_pattern_new(pattern: Text, error: *mut Text) -> *mut PatternHandle;
    fn hob_pattern_find(pattern: *const PatternHandle, text: Text) -> i64;
    fn hob_pattern_free(pattern: *mut PatternHandle);
}
