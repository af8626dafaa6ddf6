//! Tests of the live block as a whole: a small house, its clients, and what must hold for every request.
//!
//! `House` lays requests and checks each of them against what it was given alone: see `check`.

mod adversaries;
mod conversations;
mod evidence;
mod properties;
mod store;

use std::collections::BTreeMap;

use super::lay::RETRY_S;
use super::*;
use crate::request::ToolCall;

/// 2026-11-30 19:27:50 in a house one hour east of Greenwich.
const START: i64 = 1_796_063_270;
const ZONE: Zone = Zone { offset_s: 3600, name: "CET" };

/// A stand-in for the recogniser: a line of one sentence with the time of day in the
/// house, up to 120 s off, or the word `nonce`.
fn is_clock(line: &str, now: i64) -> bool {
    let of_day = (now + 3600).rem_euclid(24 * 3600);
    let sentences = line.trim_end_matches(['.', ' ']);
    !sentences.contains(". ")
        && (line.contains("nonce")
        || line.split(|c: char| !c.is_ascii_digit() && c != ':').filter(|word| word.len() == 8).any(|word| {
            let parts: Vec<i64> = word.split(':').filter_map(|part| part.parse().ok()).collect();
            matches!(parts[..], [hour, minute, second] if (hour * 3600 + minute * 60 + second - of_day).abs() <= 120)
        }))
}

/// The sentences of a line that `is_clock` takes, if they are not all of it.
fn clock_sentences(line: &str, now: i64) -> Vec<std::ops::Range<usize>> {
    let mut end = 0;
    let sentences = line.split_inclusive(". ").map(|sentence| {
        end += sentence.len();
        end - sentence.len()..end
    });
    sentences.filter(|range| is_clock(&line[range.clone()], now)).collect()
}

fn clock(now: i64) -> String {
    let of_day = (now + 3600).rem_euclid(24 * 3600);
    format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

fn system(text: impl Into<String>) -> Message {
    Message::text(Role::System, text)
}

fn user(text: impl Into<String>) -> Message {
    Message::text(Role::User, text)
}

fn assistant(text: impl Into<String>) -> Message {
    Message::text(Role::Assistant, text)
}

fn tool(text: impl Into<String>) -> Message {
    Message::text(Role::Tool, text)
}

fn call(name: &str, arguments: &str) -> Message {
    let call = ToolCall { id: None, name: name.to_string(), arguments: arguments.to_string() };
    Message { tool_calls: vec![call], ..assistant("") }
}

/// hob's side, with the time.
struct House {
    live: Live,
    now: i64,
    mode: Mode,
    tools: Vec<String>,
    fit: Fit,
    n_context_tokens: usize,
    conversation: Option<String>,
    owner: Owner,
    records_were_lost: bool,
    house: Vec<HouseSlot>,
}

impl House {
    fn new(mode: Mode) -> House {
        House {
            live: Live::default(),
            now: START,
            mode,
            tools: Vec::new(),
            fit: Fit::Free,
            n_context_tokens: 1 << 20,
            conversation: None,
            owner: Owner::Private([1; 32]),
            records_were_lost: false,
            house: Vec::new(),
        }
    }

    /// Lays `messages`, twice, and checks what must always hold.
    fn lay(&mut self, messages: &[Message]) -> Laid<'static> {
        let laid = self.lay_once(messages);
        check(messages, &laid, self.now, self.records_were_lost);
        if self.fit == Fit::Free {
            assert_eq!(self.lay_once(messages).messages, laid.messages, "a retry gets equal bytes");
        }
        laid
    }

    fn lay_once(&mut self, messages: &[Message]) -> Laid<'static> {
        let laid = self.live.lay(&Input {
            owner: self.owner,
            model: "qwen",
            conversation: self.conversation.as_deref(),
            messages,
            house: &self.house,
            fixed_bytes: 0..0,
            tools: &self.tools,
            mode: self.mode,
            fit: self.fit,
            now: self.now,
            zone: ZONE,
            n_context_tokens: self.n_context_tokens,
            count_tokens: &|text| text.len().div_ceil(4),
            is_clock: &is_clock,
            clock_sentences: &clock_sentences,
        });
        Laid { messages: Cow::Owned(laid.messages.into_owned()), ..laid }
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

fn leading(messages: &[Message]) -> String {
    let leading = messages.iter().take_while(|message| message.role == Role::System);
    leading.map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n")
}

/// What must hold of every layout, from the request and the laid prompt alone: what stays and the last values of the slots are,
/// word for word, the system text; what stays is in its order; nobody's words have changed; each block says what it is
/// said to.
fn check(sent: &[Message], laid: &Laid, now: i64, records_were_lost: bool) {
    let (sent_system, laid_system) = (leading(sent), leading(&laid.messages));
    let turns = |messages: &[Message]| -> Vec<Message> {
        messages.iter().skip_while(|message| message.role == Role::System).cloned().collect()
    };
    let (sent_turns, mut laid_turns) = (turns(sent), turns(&laid.messages));
    let n_leading = laid.messages.len() - laid_turns.len();
    let in_loop = sent_turns.last().is_some_and(|message| message.role != Role::User);

    // Each block says what it is said to, once, in order.
    let mut values: BTreeMap<u16, Arc<str>> = BTreeMap::new();
    let mut last_idx = None;
    for block in &laid.live {
        assert!(last_idx < Some(block.message_idx), "one block for each message, in order");
        last_idx = Some(block.message_idx);
        let message = &mut laid_turns[block.message_idx - n_leading];
        assert!(matches!(message.role, Role::User | Role::Tool));
        let text: String = message.content.drain(..block.n_bytes).collect();
        let mut rest = text.strip_prefix("[As of ").expect("a marker").split_once("CET:]").expect("a zone").1;
        for (entry_idx, (slot, value)) in block.entries.iter().enumerate() {
            let (before, after) = match value.is_empty() {
                false => {
                    // A heading may be a value as well as the name of what is gone in front of it.
                    let is_last = entry_idx + 1 == block.entries.len();
                    let line = format!("\n{value}\n");
                    let at =
                        if is_last { rest.rfind(&line) } else { rest.find(&line) }.expect("the value is in its block");
                    (&rest[..at], &rest[at + 1 + value.len()..])
                }
                true => {
                    // Where a record is lost, what is gone need not be visible.
                    let last = values.get(slot).map_or("", |last| last.as_ref());
                    assert!(!last.is_empty() || records_were_lost, "what is gone was there");
                    // The first of its lines; what else of it is gone may stand behind.
                    let said = |line: &str| {
                        let line = format!("\nno longer: {}\n", line.trim());
                        Some(rest.find(&line)? + line.len() - 1)
                    };
                    let gone = last.lines().filter_map(said).min();
                    assert!(gone.is_some() || last.is_empty(), "what is gone is said");
                    rest.split_at(gone.unwrap_or(0))
                }
            };
            let is_label = |line: &str| sent_system.contains(line) || values.values().any(|value| value.contains(line));
            let stands = |line: &str| line.starts_with("no longer: ") || is_label(line.trim());
            assert!(before.lines().all(stands), "only a label and what is gone stand in front of a value: {before:?}");
            rest = after;
            values.insert(*slot, value.clone());
        }
        let is_label = |line: &str| sent_system.contains(line) || values.values().any(|value| value.contains(line));
        assert!(
            rest.lines().all(|line| line.starts_with("no longer: ") || is_label(line.trim())),
            "nothing else: {rest:?}"
        );
    }
    assert_eq!(sent_turns, laid_turns, "what was said stays");

    // What stays, in its order.
    let mut sent_words = words(&sent_system).into_iter();
    for word in words(&laid_system) {
        assert!(sent_words.any(|sent_word| sent_word == word), "{word:?} stays in its place");
    }
    // Nothing is lost, doubled or out of date.
    let shown: Vec<&str> = values.values().flat_map(|value| words(value)).collect();
    let is_time = |word: &&str| is_clock(word, now) || is_clock(word, now - compose::LOOP_S);
    let sorted = |words: Vec<&str>| {
        // In a tool loop a time may be an older one, if it is not too old.
        let mut words: Vec<String> = words
            .into_iter()
            .map(|word| if in_loop && is_time(&word) { "<time>".to_string() } else { word.to_string() })
            .collect();
        words.sort_unstable();
        words
    };
    let laid_words = words(&laid_system).into_iter().chain(shown).collect();
    assert_eq!(sorted(words(&sent_system)), sorted(laid_words), "the last value of each slot is the request's");
}
