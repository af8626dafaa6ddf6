//! Names: what a value must stand under, so that a reader who meets it outside its place knows what it is the value of.
//!
//! Two rooms may both have a line `temperature: 21`. A *name* is the heading over such a line, with those above it where that
//! heading occurs more than once. What would be misread where it would move to stays: a value that no name tells from
//! another one's, a heading whose entries stay, entries of two headings without the second one between them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::blocks::{self, Block, Clocks, Kind};
use super::digest::Digest;
use super::slots::SlotIdx;

/// Stands in front of what is there no more.
const NO_LONGER: &str = "no longer: ";

pub(super) struct Names<'b, 'a> {
    blocks: &'b [Block<'a>],
    /// Of each entry the block that its list, table or lines stand under.
    contexts: Vec<Option<usize>>,
    /// Of each block the Markdown heading that it stands under.
    parents: Vec<Option<usize>>,
    /// Headings that occur more than once.
    repeated: HashSet<Digest>,
}

impl<'b, 'a> Names<'b, 'a> {
    pub(super) fn of(blocks: &'b [Block<'a>]) -> Names<'b, 'a> {
        let mut seen = HashSet::new();
        let headings = blocks.iter().filter(|block| block.kind == Kind::Heading);
        let repeated = headings.map(|block| block.digest).filter(|digest| !seen.insert(*digest)).collect();
        let (mut contexts, mut parents) = (Vec::with_capacity(blocks.len()), Vec::with_capacity(blocks.len()));
        let mut context = None;
        // Headings that are open, each deeper than the one before it.
        let mut open: Vec<usize> = Vec::new();
        for (block_idx, block) in blocks.iter().enumerate() {
            if block_idx > 0 && blocks[block_idx - 1].message_idx != block.message_idx {
                (context, open) = (None, Vec::new());
            }
            let level = level(block);
            open.truncate(open.iter().take_while(|&&above| level == 0 || self::level(&blocks[above]) < level).count());
            parents.push(open.last().copied());
            if level > 0 {
                open.push(block_idx);
            }
            contexts.push(context.filter(|_| is_entry(block)));
            if !is_entry(block) && !block.is_clock {
                context = Some(block_idx);
            }
        }
        Names { blocks, contexts, parents, repeated }
    }

    /// What must stand over the block, line by line.
    pub(super) fn name(&self, block_idx: usize) -> Option<Arc<str>> {
        let block = &self.blocks[block_idx];
        let is_heading = |idx: &usize| self.blocks[*idx].kind == Kind::Heading;
        if is_heading(&block_idx) {
            return self.chain(self.parents[block_idx].filter(|_| self.repeated.contains(&block.digest))?);
        }
        self.chain(self.contexts[block_idx].filter(is_heading)?)
    }

    /// The name of an entry that would stand behind the block.
    pub(super) fn name_behind(&self, block_idx: usize) -> Option<Arc<str>> {
        if self.blocks[block_idx].kind == Kind::Heading { self.chain(block_idx) } else { self.name(block_idx) }
    }

    /// Takes back what would be misread.
    pub(super) fn settle(&self, to: &mut [Option<SlotIdx>]) {
        let mut stay: BTreeSet<SlotIdx> = self.nameless().into_iter().filter_map(|block_idx| to[block_idx]).collect();
        loop {
            for to in to.iter_mut() {
                *to = to.filter(|slot| !stay.contains(slot));
            }
            stay = self.misread(to);
            if stay.is_empty() {
                break;
            }
        }
    }

    /// Entries that cannot be told from others when they stand elsewhere: the same key, another context, the same name.
    fn nameless(&self) -> Vec<usize> {
        let mut by_key: HashMap<&str, Vec<usize>> = HashMap::new();
        for (block_idx, block) in self.blocks.iter().enumerate() {
            if is_entry(block) {
                by_key.entry(key(block)).or_default().push(block_idx);
            }
        }
        let mut nameless = Vec::new();
        for same in by_key.into_values() {
            let contexts: BTreeSet<Option<usize>> = same.iter().map(|&at| self.contexts[at]).collect();
            if contexts.len() < 2 {
                continue;
            }
            let mut by_name: HashMap<Option<Arc<str>>, usize> = HashMap::new();
            let mut counted = BTreeSet::new();
            let named: Vec<_> = same.iter().map(|&at| (at, self.name(at))).collect();
            for (at, name) in &named {
                if counted.insert(self.contexts[*at]) {
                    *by_name.entry(name.clone()).or_default() += 1;
                }
            }
            nameless.extend(named.iter().filter(|(_, name)| by_name[name] > 1).map(|(at, _)| *at));
        }
        nameless
    }

    /// Slots of headings whose entries or sections stay, and of entries behind a heading that is not with them.
    fn misread(&self, to: &[Option<SlotIdx>]) -> BTreeSet<SlotIdx> {
        let mut slots = BTreeSet::new();
        let mut contexts: BTreeMap<SlotIdx, Option<usize>> = BTreeMap::new();
        for (block_idx, block) in self.blocks.iter().enumerate() {
            let context = self.contexts[block_idx];
            match to[block_idx] {
                None => {
                    slots.extend([context, self.parents[block_idx]].into_iter().flatten().filter_map(|above| to[above]))
                }
                Some(slot) if is_entry(block) => {
                    let last = contexts.insert(slot, context);
                    let comes_along = context.is_some_and(|above| to[above] == Some(slot));
                    if last.is_some_and(|last| last != context) && !comes_along {
                        slots.insert(slot);
                    }
                }
                Some(_) => {}
            }
        }
        slots
    }

    fn chain(&self, heading_idx: usize) -> Option<Arc<str>> {
        let mut lines = vec![self.blocks[heading_idx].content.trim_start()];
        let mut at = heading_idx;
        while self.repeated.contains(&self.blocks[at].digest)
            && let Some(parent) = self.parents[at]
        {
            lines.push(self.blocks[parent].content.trim_start());
            at = parent;
        }
        lines.reverse();
        Some(lines.join("\n").into())
    }
}

/// Of a Markdown heading the number of its marks, else 0.
fn level(block: &Block) -> usize {
    let n_marks = block.content.trim_start().bytes().take_while(|&byte| byte == b'#').count();
    if block.kind == Kind::Heading { n_marks } else { 0 }
}

/// One of several values under a heading.
fn is_entry(block: &Block) -> bool {
    matches!(block.kind, Kind::Item | Kind::Row | Kind::KeyValue) && !block.is_clock
}

/// The lines that say what of `last`, which a reader has seen, `value` has no more. What stood under a heading of `last`'s own
/// is said under it. Prose is only gone where nothing came in its place.
pub(super) fn gone(last: &str, value: &str) -> Vec<String> {
    let (mut was, mut is) = (Vec::new(), Vec::new());
    blocks::split(last, 0, Clocks::NONE, &mut was);
    blocks::split(value, 0, Clocks::NONE, &mut is);
    let Some(first) = was.first() else { return Vec::new() };
    let line = |block: &Block| block.content.trim_start().lines().next().unwrap_or_default().trim_end().to_string();
    if is.is_empty() && !is_entry(first) {
        return vec![format!("{NO_LONGER}{}", line(first))];
    }
    let has_shrunk = was.len() > is.len();
    let keys = |blocks: &[Block]| -> HashSet<(String, String)> {
        under_headings(blocks).map(|(heading, block)| (heading, key(block).to_string())).collect()
    };
    let keys = keys(&is);
    let mut lines = Vec::new();
    let mut said = String::new();
    for (heading, block) in under_headings(&was) {
        let is_keyed = block.content.contains(": ") || block.content.contains('=');
        let is_said = block.kind == Kind::Heading || (is_entry(block) && (is_keyed || has_shrunk));
        // With a heading all goes that stood under it.
        let has_heading = heading.is_empty() || is.iter().any(|block| block.content.trim_start() == heading);
        if !is_said || keys.contains(&(heading.clone(), key(block).to_string())) || !has_heading {
            continue;
        }
        if heading != said {
            lines.extend(Some(heading.clone()).filter(|heading| !heading.is_empty()));
            said = heading;
        }
        lines.push(format!("{NO_LONGER}{}", line(block)));
    }
    lines
}

/// Each block with the heading of this text that it stands under, or none; headings stand under none.
fn under_headings<'b, 'a>(blocks: &'b [Block<'a>]) -> impl Iterator<Item = (String, &'b Block<'a>)> {
    let mut heading = String::new();
    blocks.iter().map(move |block| {
        if block.kind == Kind::Heading {
            heading = block.content.trim_start().to_string();
            return (String::new(), block);
        }
        (heading.clone(), block)
    })
}

/// Whether a text begins with an entry.
pub(super) fn begins_with_entry(text: &str) -> bool {
    let mut blocks = Vec::new();
    blocks::split(text, 0, Clocks::NONE, &mut blocks);
    blocks.first().is_some_and(is_entry)
}

/// What an entry is the value of: all of its first line, if others say more.
fn key<'a>(block: &Block<'a>) -> &'a str {
    let mut lines = block.content.trim_start().lines();
    let first = lines.next().unwrap_or_default().trim_end();
    let key = first.split_once(": ").or_else(|| first.split_once('='));
    match key.filter(|_| lines.next().is_none()) {
        Some((key, _)) => key.trim_end(),
        None => first,
    }
}
