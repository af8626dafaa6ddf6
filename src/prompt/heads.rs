//! Where a prompt's head ends, whatever comes behind it.
//!
//! A *head* is what stands before the history: system text, tools, first exchanges. Its *stable end* is right after the
//! last control token that is the same for two conversations that go on differently; tokens up to there are the same for
//! all of them. A head is remembered by content, so that a warm request pays one render.

use std::sync::Arc;

use super::echoes::Calls;
use super::memo::Memo;
use super::order::End;
use super::sentinel::Controls;
use super::tokens::Tokeniser;
use super::toolset::Toolset;
use super::{Moment, PromptError, refused};
use crate::request::{Message, Owner, Role, Thinking, Token, ToolCall, Wanted};

/// Bytes of the heads' tokens: 400 heads of 5,000.
const MEMO_BYTES_MAX: usize = 8 << 20;
/// Bytes of one entry beside its tokens: the key, the counts of `Arc`, the hash table's share.
const ENTRY_BYTES: usize = 96;

/// What a template may print beside messages and tools: the time, and what is wanted of the answer. The same head on another
/// day is another head.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) unix_s: i64,
    day: i64,
    pub(super) wanted: Wanted,
}

impl Shown {
    pub(super) fn at(moment: &Moment, wanted: Wanted) -> Shown {
        Shown { unix_s: moment.unix_s, day: moment.day(), wanted }
    }

    fn hash(&self, hasher: &mut blake3::Hasher) {
        hasher.update(&self.day.to_le_bytes());
        let Thinking { is_on, effort, budget: _ } = &self.wanted.thinking;
        // Each with what parts it from the next.
        hasher.update(&[is_on.map_or(2, u8::from), u8::from(effort.is_some())]);
        let args = self.wanted.template_args.iter().flat_map(|(name, json)| [name, json]);
        for text in effort.iter().chain(args) {
            hasher.update(&text.len().to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
}

pub(super) struct Heads {
    controls: Arc<Controls>,
    /// The head's tokens up to its stable end; `None`: it has none.
    ends: Memo<blake3::Hash, Option<Arc<[Token]>>>,
}

impl Heads {
    pub(super) fn new(controls: Arc<Controls>) -> Heads {
        Heads { controls, ends: Memo::new(MEMO_BYTES_MAX) }
    }

    /// For each of `ends` the tokens up to it, if it is stable.
    pub(super) fn find(
        &mut self,
        toolset: &Toolset,
        messages: &[Message],
        ends: &[End],
        shown: &Shown,
        tokeniser: &mut Tokeniser,
    ) -> Result<Vec<Option<Arc<[Token]>>>, PromptError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(toolset.key.as_bytes());
        shown.hash(&mut hasher);
        let mut n_hashed = 0;
        let mut found = Vec::with_capacity(ends.len());
        for end in ends {
            messages[n_hashed..end.n_messages].iter().for_each(|message| hash(message, &mut hasher));
            n_hashed = end.n_messages;
            let key = hasher.finalize();
            let tokens = match self.ends.get(&key) {
                Some(tokens) => tokens.clone(),
                None => {
                    let tokens = self.measure(toolset, &messages[..end.n_messages], shown, tokeniser)?;
                    let n_bytes = tokens.as_ref().map_or(0, |tokens| size_of_val(&**tokens)) + ENTRY_BYTES;
                    self.ends.insert(key, tokens.clone(), n_bytes);
                    tokens
                }
            };
            found.push(tokens);
        }
        Ok(found)
    }

    /// Renders the head with two different conversations behind it. One is longer, because some templates put things in
    /// front of the last user's message, and those are no part of a head.
    fn measure(
        &self,
        toolset: &Toolset,
        head: &[Message],
        shown: &Shown,
        tokeniser: &mut Tokeniser,
    ) -> Result<Option<Arc<[Token]>>, PromptError> {
        let mut messages = head.to_vec();
        messages.push(Message::text(Role::User, "one"));
        let short = toolset.prepared.render_at(&messages, true, shown.unix_s, &shown.wanted).map_err(refused)?;
        messages.truncate(head.len());
        messages.extend([
            Message::text(Role::User, "two"),
            Message::text(Role::Assistant, "three"),
            Message::text(Role::User, "four"),
        ]);
        let long = toolset.prepared.render_at(&messages, true, shown.unix_s, &shown.wanted).map_err(refused)?;
        let n_common = short.bytes().zip(long.bytes()).take_while(|(a, b)| a == b).count();
        let end = self.controls.find(&short).map(|(range, _)| range.end).take_while(|&end| end <= n_common).last();
        Ok(end.map(|end| tokeniser.tokenise(&short[..end], Owner::Public, &Calls::default()).into()))
    }
}

/// Every field that a template can render, each with its length, so that no two messages hash alike.
fn hash(message: &Message, hasher: &mut blake3::Hasher) {
    let mut text = |text: &str| {
        hasher.update(&text.len().to_le_bytes());
        hasher.update(text.as_bytes());
    };
    let Message { role, content, reasoning, name, tool_calls, tool_call_id, n_marked_bytes: _ } = message;
    text(role.template_name());
    text(content);
    for option in [reasoning, name, tool_call_id] {
        text(if option.is_some() { "some" } else { "none" });
        text(option.as_deref().unwrap_or_default());
    }
    text(&tool_calls.len().to_string());
    for ToolCall { id, name, arguments } in tool_calls {
        text(id.as_deref().unwrap_or_default());
        text(name);
        text(arguments);
    }
}
