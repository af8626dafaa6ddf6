//! What differs between two system texts that are one text with changing places: for those who look at stored requests.
//!
//! A *change* is a run of blocks between two that are the same in both texts. Clocks are none: they are known by themselves.
//! Nothing is learnt here; what a running planner makes of changes is `family`'s.

use super::AGREEMENT_MIN;
use super::blocks::{self, Block, Clocks};
use super::digest::Digest;
use super::slots::runs;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::prompt) struct Change {
    /// Where in the later texts it stands, or would stand: text and byte.
    pub(in crate::prompt) text_idx: usize,
    pub(in crate::prompt) byte: usize,
    pub(in crate::prompt) before: String,
    pub(in crate::prompt) after: String,
}

/// From `before` to `after`, from front to back. `None`: these are two texts, not one that changed.
pub(in crate::prompt) fn changes(
    before: &[&str],
    after: &[&str],
    is_clock: &dyn Fn(&str) -> bool,
) -> Option<Vec<Change>> {
    let clocks = Clocks { is_clock, sentences: &|_| Vec::new() };
    let split = |texts: &[&'_ str]| -> Vec<(String, Digest, bool)> {
        let mut found = Vec::new();
        for (text_idx, text) in texts.iter().enumerate() {
            blocks::split(text, text_idx, clocks, &mut found);
        }
        found.iter().map(|block: &Block| (block.content.to_owned(), block.digest, block.is_clock)).collect()
    };
    let before = split(before);
    let mut blocks = Vec::new();
    for (text_idx, text) in after.iter().enumerate() {
        blocks::split(text, text_idx, clocks, &mut blocks);
    }
    let starts = starts(&blocks);
    let (mut changes, mut n_same, mut n_other) = (Vec::new(), 0, 0);
    for run in runs(&before, |(_, digest, is_clock)| Some(*digest).filter(|_| !is_clock), &blocks) {
        let was: Vec<&str> = before[run.places].iter().filter(|(.., clock)| !clock).map(|(text, ..)| &**text).collect();
        let is: Vec<usize> = run.blocks.filter(|&block_idx| !blocks[block_idx].is_clock).collect();
        n_same += run.anchor.map_or(0, |(_, block_idx)| blocks[block_idx].content.len());
        if was.is_empty() && is.is_empty() {
            continue;
        }
        let after: Vec<&str> = is.iter().map(|&block_idx| blocks[block_idx].content).collect();
        let (before, after) = (was.join("\n"), after.join("\n"));
        n_other += before.len().max(after.len());
        let at = is.first().copied().or(run.anchor.map(|(_, block_idx)| block_idx));
        let (text_idx, byte) = at.or(blocks.len().checked_sub(1)).map_or((0, 0), |block_idx| {
            (blocks[block_idx].message_idx, starts[block_idx] + at.map_or(blocks[block_idx].content.len(), |_| 0))
        });
        changes.push(Change { text_idx, byte, before, after });
    }
    let n_all = n_same + n_other;
    (n_all == 0 || n_same as f64 / n_all as f64 >= AGREEMENT_MIN).then_some(changes)
}

/// Where in its message each block begins, behind its indent.
fn starts(blocks: &[Block]) -> Vec<usize> {
    let (mut message_idx, mut n_bytes) = (0, 0);
    let start = |block: &Block| {
        if block.message_idx != message_idx {
            (message_idx, n_bytes) = (block.message_idx, 0);
        }
        let start = n_bytes;
        n_bytes += block.content.len() + block.gap.len();
        start
    };
    blocks.iter().map(start).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: &str, after: &str, expected: Option<&[(usize, &str, &str)]>) {
        let found = changes(&[before], &[after], &|line| line.starts_with("The time"));
        let found: Option<Vec<(usize, &str, &str)>> = found.as_ref().map(|changes| {
            changes.iter().map(|change| (change.byte, change.before.as_str(), change.after.as_str())).collect()
        });
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn a_change_has_its_place_and_both_its_texts() {
        let long = "A rule that is long enough to make these two texts one text that changed.";
        let text = |first: &str, last: &str| format!("{first}\n{long}\n{last}");
        check(&text("a: 1", "b: 1"), &text("a: 1", "b: 1"), Some(&[]));
        check(&text("a: 1", "b: 1"), &text("a: 2", "b: 1"), Some(&[(0, "a: 1", "a: 2")]));
        check(&text("a: 1", "b: 1"), &text("a: 1", "b: 2"), Some(&[(79, "b: 1", "b: 2")]));
        check(&text("a: 1", ""), &text("a: 1", "new: 1"), Some(&[(79, "", "new: 1")]));
        check(&text("a: 1", "gone: 1"), &text("a: 1", ""), Some(&[(78, "gone: 1", "")]));
        check(&text("gone: 1", "b: 1"), &format!("{long}\nb: 1"), Some(&[(0, "gone: 1", "")]));
        check(&text("The time is 1.", "b: 1"), &text("The time is 2.", "b: 1"), Some(&[]));
        check("One thing.", "Something else altogether.", None);
        check("", "", Some(&[]));
    }
}
