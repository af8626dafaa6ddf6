//! Control tokens that somebody typed stay text.
//!
//! A *control token* is one that a template writes to mark turns (`<|im_end|>`); a *sentinel* is one character of a
//! private-use plane that stands for a control token's spelling while the template renders. What the template itself
//! writes is found by spelling afterwards, and so cannot be confused with what a client, a document or a tool holds.
//! This file finds, replaces and restores; it makes no tokens.

use std::borrow::Cow;
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

use super::PromptError;
use crate::engine::Vocab;
use crate::request::{Message, Token, ToolCall};

/// First sentinel: U+100000, the start of supplementary private use area B, which no script or emoji uses.
const FIRST: u32 = 0x10_0000;
/// The area ends at U+10FFFD.
const N_SENTINELS_MAX: usize = 0xFFFE;
/// First byte, in UTF-8, of every character of that area and of none before it.
const FIRST_BYTE: u8 = 0xF4;

/// The control tokens of a vocabulary, ready to be found.
pub(super) struct Controls {
    tokens: Vec<Token>,
    spellings: Vec<String>,
    finder: AhoCorasick,
}

/// A text holds a character that is a sentinel here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reserved(pub(super) u32);

impl Controls {
    pub(super) fn of(vocab: &dyn Vocab) -> Result<Controls, PromptError> {
        let (tokens, spellings): (Vec<_>, Vec<_>) =
            vocab.control_tokens().iter().filter(|(_, spelling)| !spelling.is_empty()).cloned().unzip();
        if tokens.len() > N_SENTINELS_MAX {
            let reason = format!("{} control tokens: at most {N_SENTINELS_MAX} can be told from text", tokens.len());
            return Err(PromptError::Template { reason });
        }
        // Leftmost-longest: where one spelling begins another (`<|end` and `<|end|>`), the longer one is meant.
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(&spellings)
            .map_err(|error| PromptError::Template { reason: format!("control tokens: {error}") })?;
        Ok(Controls { tokens, spellings, finder })
    }

    /// Where control tokens are spelled in `text`, from left to right.
    pub(super) fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (Range<usize>, Token)> + 'a {
        self.finder.find_iter(text).map(|found| (found.range(), self.tokens[found.pattern().as_usize()]))
    }

    /// The control tokens with their spelling.
    pub(super) fn all(&self) -> impl Iterator<Item = (Token, &str)> {
        self.tokens.iter().copied().zip(self.spellings.iter().map(String::as_str))
    }

    /// Puts sentinels for the control tokens that `text` spells. Whether there were any.
    pub(super) fn guard(&self, text: &mut String) -> Result<bool, Reserved> {
        if let Some((_, sentinel)) = sentinels(text).find(|&(_, character)| self.spelling_of(character).is_some()) {
            return Err(Reserved(sentinel as u32));
        }
        Ok(self.replace(text))
    }

    /// Like `guard` for a text of JSON, which a template may parse and write anew: spellings hidden behind escapes
    /// (`\u003c|im_end|>`, `<\/s>`) count, too. Where there are such, the JSON is rewritten; else only spellings change.
    pub(super) fn guard_json(&self, text: &mut String) -> Result<bool, Reserved> {
        if text.contains('\\')
            && let Ok(mut value) = serde_json::from_str::<Value>(text)
            && self.guard_value(&mut value)?
        {
            *text = value.to_string();
            // Left are spellings that run across JSON's own marks.
            self.replace(text);
            return Ok(true);
        }
        self.guard(text)
    }

    fn guard_value(&self, value: &mut Value) -> Result<bool, Reserved> {
        match value {
            Value::String(text) => self.guard(text),
            Value::Array(values) => {
                values.iter_mut().try_fold(false, |changed, value| Ok(self.guard_value(value)? | changed))
            }
            Value::Object(fields) => {
                let mut changed = false;
                for (mut key, mut value) in std::mem::take(fields) {
                    changed |= self.guard(&mut key)? | self.guard_value(&mut value)?;
                    fields.insert(key, value);
                }
                Ok(changed)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(false),
        }
    }

    /// `guard` for every text of every message; borrowed where nothing had to be replaced.
    pub(super) fn guard_messages<'a>(&self, messages: &'a [Message]) -> Result<Cow<'a, [Message]>, PromptError> {
        let mut guarded = Cow::Borrowed(messages);
        for (index, message) in messages.iter().enumerate() {
            if self.is_suspect(message) {
                self.guard_message(&mut guarded.to_mut()[index])
                    .map_err(|Reserved(code)| PromptError::Reserved { index, code })?;
            }
        }
        Ok(guarded)
    }

    fn guard_message(&self, message: &mut Message) -> Result<(), Reserved> {
        let Message { role: _, content, reasoning, name, tool_calls, tool_call_id, n_marked_bytes: _ } = message;
        self.guard(content)?;
        for text in [reasoning, name, tool_call_id].into_iter().flatten() {
            self.guard(text)?;
        }
        for ToolCall { id, name, arguments } in tool_calls {
            self.guard(name)?;
            self.guard_json(arguments)?;
            if let Some(id) = id {
                self.guard(id)?;
            }
        }
        Ok(())
    }

    /// Whether `message` is worth a copy: it may hold something to replace or to refuse.
    fn is_suspect(&self, message: &Message) -> bool {
        let suspect = |text: &String| self.finder.is_match(text) || sentinels(text).next().is_some();
        let Message { role: _, content, reasoning, name, tool_calls, tool_call_id, n_marked_bytes: _ } = message;
        suspect(content)
            || [reasoning, name, tool_call_id].into_iter().flatten().any(suspect)
            || tool_calls.iter().any(|ToolCall { id, name, arguments }| {
                suspect(name) || suspect(arguments) || arguments.contains('\\') || id.as_ref().is_some_and(suspect)
            })
    }

    fn replace(&self, text: &mut String) -> bool {
        let mut guarded = String::new();
        let mut copied = 0;
        for found in self.finder.find_iter(text.as_str()) {
            guarded.push_str(&text[copied..found.start()]);
            guarded.extend(char::from_u32(FIRST + found.pattern().as_u32()));
            copied = found.end();
        }
        if copied == 0 {
            return false;
        }
        guarded.push_str(&text[copied..]);
        *text = guarded;
        true
    }

    /// `text` with the spellings back in place of sentinels.
    pub(super) fn restore<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut restored = String::new();
        let mut copied = 0;
        for (start, character) in sentinels(text) {
            let Some(spelling) = self.spelling_of(character) else { continue };
            restored.push_str(&text[copied..start]);
            restored.push_str(spelling);
            copied = start + character.len_utf8();
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        restored.push_str(&text[copied..]);
        Cow::Owned(restored)
    }

    fn spelling_of(&self, sentinel: char) -> Option<&str> {
        let index = (sentinel as u32).checked_sub(FIRST)?;
        self.spellings.get(index as usize).map(String::as_str)
    }
}

/// Characters of the sentinels' area with their byte offset. One look for one byte where there are none.
fn sentinels(text: &str) -> impl Iterator<Item = (usize, char)> {
    let some = text.as_bytes().contains(&FIRST_BYTE).then_some(text);
    some.into_iter().flat_map(str::char_indices).filter(|&(_, character)| character as u32 >= FIRST)
}
