//! A set of tools, ready for a template: the expensive half of rendering, remembered by content.
//!
//! A *tool set* is the list of definitions of one request, in its order. It decides nothing about where tools stand.

use std::sync::Arc;

use super::memo::Memo;
use super::sentinel::{Controls, Reserved};
use super::{PromptError, fallback, refused};
use crate::engine::{ChatTemplate, PreparedTemplate};

/// Sets kept prepared. A house has one per client program, and a few kilobytes to a megabyte each.
const N_KEPT_MAX: usize = 32;

pub(super) struct Toolset {
    /// Hash of the definitions as they were sent.
    pub(super) key: blake3::Hash,
    /// Bytes that the definitions add to the prompt, before the template formats them; 0: no tools.
    pub(super) n_bytes: usize,
    /// What the fallback adds to the system text.
    pub(super) written: Option<String>,
    pub(super) prepared: Box<dyn PreparedTemplate>,
}

pub(super) struct Toolsets {
    template: Arc<dyn ChatTemplate>,
    controls: Arc<Controls>,
    kept: Memo<blake3::Hash, Toolset>,
}

impl Toolsets {
    pub(super) fn new(template: Arc<dyn ChatTemplate>, controls: Arc<Controls>) -> Toolsets {
        Toolsets { template, controls, kept: Memo::new(N_KEPT_MAX) }
    }

    pub(super) fn by_fallback(&self) -> bool {
        !self.template.takes_tools()
    }

    /// The set of `tools`, prepared now or before.
    pub(super) fn get(&mut self, tools: &[String]) -> Result<&Toolset, PromptError> {
        let key = key(tools);
        if self.kept.get(&key).is_none() {
            let toolset = self.prepare(key, tools)?;
            self.kept.insert(key, toolset, 1);
        }
        Ok(self.kept.get(&key).expect("a set of weight 1 is kept when it comes in"))
    }

    fn prepare(&self, key: blake3::Hash, tools: &[String]) -> Result<Toolset, PromptError> {
        let mut guarded = tools.to_vec();
        for (index, tool) in guarded.iter_mut().enumerate() {
            let place = || format!("tools[{index}]");
            self.controls
                .guard_json(tool)
                .map_err(|Reserved(code)| PromptError::ReservedElsewhere { place: place(), code })?;
        }
        let written = if self.by_fallback() { fallback::tools_text(&guarded) } else { None };
        let n_bytes = written.as_ref().map_or_else(|| guarded.iter().map(String::len).sum(), String::len);
        let for_template: &[String] = if self.by_fallback() { &[] } else { &guarded };
        let prepared = self.template.prepare(for_template).map_err(refused)?;
        Ok(Toolset { key, n_bytes, written, prepared })
    }
}

/// Of the definitions as they are, in their order.
pub(super) fn key(tools: &[String]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for tool in tools {
        hasher.update(&tool.len().to_le_bytes());
        hasher.update(tool.as_bytes());
    }
    hasher.finalize()
}
