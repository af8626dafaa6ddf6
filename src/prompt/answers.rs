//! What answers must obey and who reads them, remembered by content.
//!
//! An *answer* here is one that is still to come: its rules and its reader, which the template makes of a set of tools and of
//! what is wanted. That takes tens of milliseconds for a house's tools. It decides nothing about the prompt.

use std::sync::Arc;

use super::memo::Memo;
use super::toolset::Toolset;
use super::{PromptError, refused};
use crate::engine::{Answer, ChatTemplate};
use crate::request::Wanted;

/// Bytes of the tools and grammars of remembered answers. A reader takes some twenty times that.
const BYTES_MAX: usize = 4 << 20;

pub(super) struct Answers {
    template: Arc<dyn ChatTemplate>,
    kept: Memo<Key, Answer>,
}

/// The tools, what is wanted, and whether the prompt ends with a result.
type Key = (blake3::Hash, Wanted, bool);

impl Answers {
    pub(super) fn new(template: Arc<dyn ChatTemplate>) -> Answers {
        Answers { template, kept: Memo::new(BYTES_MAX) }
    }

    /// The answer to a prompt with `tools`, which are those of `toolset`.
    pub(super) fn get(
        &mut self,
        toolset: &Toolset,
        tools: &[String],
        wanted: &Wanted,
        follows_result: bool,
    ) -> Result<Answer, PromptError> {
        let key = (toolset.key, wanted.clone(), follows_result);
        if let Some(known) = self.kept.get(&key) {
            return Ok(known.clone());
        }
        let answer = self.template.answer(tools, wanted, follows_result).map_err(refused)?;
        let n_bytes = toolset.n_bytes + answer.rules.grammar.as_ref().map_or(0, |grammar| grammar.text.len());
        self.kept.insert(key, answer.clone(), n_bytes + size_of::<(Key, Answer)>());
        Ok(answer)
    }
}
