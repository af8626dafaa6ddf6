//! The budget: sequence ids and cells as numbers. llama.cpp has no call that tells free cells, so hob counts.
//!
//! A *reservation* is cells promised to a running sequence and not used yet. What is promised is always there:
//! `reserved ≤ free + evictable`.

use super::holder::Holder;
use crate::engine::SeqId;
use crate::request::Token;

/// Sequence ids that are free, and those of running sequences; the rest stand on leaves.
#[derive(Debug)]
pub struct Ids {
    free: Vec<SeqId>,
    is_running: Vec<bool>,
}

impl Ids {
    pub fn new(n_seq_max: usize) -> Ids {
        let all = (0..n_seq_max).map(|id| SeqId(u16::try_from(id).expect("at most 256 ids")));
        Ids { free: all.rev().collect(), is_running: vec![false; n_seq_max] }
    }

    pub fn total(&self) -> usize {
        self.is_running.len()
    }

    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    pub fn n_running(&self) -> usize {
        self.is_running.iter().filter(|is_running| **is_running).count()
    }

    pub fn is_running(&self, seq: SeqId) -> bool {
        self.is_running[usize::from(seq.0)]
    }

    /// An id for a running sequence.
    pub fn take(&mut self) -> Option<SeqId> {
        let seq = self.free.pop()?;
        self.is_running[usize::from(seq.0)] = true;
        Some(seq)
    }

    /// The id of a leaf becomes that of a running sequence.
    pub fn set_running(&mut self, seq: SeqId, is_running: bool) {
        self.is_running[usize::from(seq.0)] = is_running;
    }

    /// Gives an id back; the engine holds nothing under it any more.
    pub fn free(&mut self, seq: SeqId) {
        debug_assert!(!self.free.contains(&seq), "an id is freed once");
        self.is_running[usize::from(seq.0)] = false;
        self.free.push(seq);
    }
}

/// Sequence ids to ask the context for: for answers, warming, pins and as many resident leaves as are cheap.
///
/// Each id costs n_vocab × 4 bytes of output buffer, which llama.cpp fills at once: 32 MiB of that is the most, and one id
/// for 32 of the `n_cells`, since few leaves are shorter, unless answers and pins alone need more. An answer may need two, its
/// own and one that its node inherited. llama.cpp has at most 256.
/// `n_ids` tells how many ids of the context so many sequences need: an engine keeps some to itself.
pub fn n_seq_max(
    parallel: usize,
    n_pins: usize,
    n_cells: usize,
    n_vocab: u64,
    n_ids: impl Fn(usize) -> usize,
) -> usize {
    const OUTPUT_BYTES_MAX: u64 = 32 << 20;
    const N_IDS_MAX: usize = 256;
    const LEAF_CELLS: usize = 32;
    let needed = 2 * parallel + n_pins + 4;
    let cheap = (OUTPUT_BYTES_MAX / (4 * n_vocab.max(1))).min((n_cells / LEAF_CELLS) as u64) as usize;
    let most = |n_ids_max: usize| (1..=n_ids_max).rev().find(|&n| n_ids(n) <= n_ids_max).unwrap_or(1);
    most(cheap.clamp(1, N_IDS_MAX)).max(needed).min(most(N_IDS_MAX))
}

/// Cells that prefixes take together when what they share is held once.
pub fn union_len(prefixes: &[&[Token]]) -> usize {
    let mut sorted = prefixes.to_vec();
    sorted.sort_unstable();
    let first = sorted.first().map_or(0, |first| first.len());
    let others = sorted.windows(2).map(|pair| {
        let n_common = pair[0].iter().zip(pair[1]).take_while(|(a, b)| a == b).count();
        pair[1].len() - n_common
    });
    first + others.sum::<usize>()
}

/// What would not fit, by how many cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "pins need {needed} cells and {left_for_requests} must stay for requests, the context has {context}: {missing} too few"
)]
pub struct PinsTooLarge {
    pub needed: usize,
    pub left_for_requests: usize,
    pub context: usize,
    pub missing: usize,
}

/// Cells that must stay beside the pins, or no request could be answered while they are warm: 256, the first reservation of
/// an answer, plus 256 for a short question.
pub const LEFT_FOR_REQUESTS: usize = 512;

/// Whether pins fit into a context of `n_cells`. `are_shared`: whether what one owner's have in common is held once.
pub fn check_pins(pins: &[(Holder, &[Token])], n_cells: usize, are_shared: bool) -> Result<usize, PinsTooLarge> {
    let of = |holder| pins.iter().filter(move |pin| pin.0 == holder).map(|pin| pin.1).collect::<Vec<_>>();
    let is_first = |index: &usize| pins[..*index].iter().all(|before| before.0 != pins[*index].0);
    let needed = match are_shared {
        true => (0..pins.len()).filter(is_first).map(|index| union_len(&of(pins[index].0))).sum::<usize>(),
        false => pins.iter().map(|pin| pin.1.len()).sum(),
    };
    match (needed + LEFT_FOR_REQUESTS).checked_sub(n_cells) {
        None | Some(0) => Ok(needed),
        Some(_) if pins.is_empty() => Ok(0),
        Some(missing) => Err(PinsTooLarge { needed, left_for_requests: LEFT_FOR_REQUESTS, context: n_cells, missing }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Owner;

    fn tokens(text: &str) -> Vec<Token> {
        text.bytes().map(|byte| Token(byte.into())).collect()
    }

    #[test]
    fn ids_that_the_engine_keeps_to_itself_are_within_the_limits() {
        let doubled = |n: usize| 2 * n + 1;
        let n_cells = 16_384;
        assert_eq!(n_seq_max(4, 2, n_cells, 49_152, |n| n + 1), 169, "170 ids are 32 MiB");
        assert_eq!(n_seq_max(4, 2, 1024, 49_152, |n| n + 1), 31, "32 leaves have 32 cells each");
        assert_eq!(n_seq_max(4, 2, n_cells, 262_144, doubled), 15, "31 ids are");
        assert_eq!(n_seq_max(8, 2, n_cells, 262_144, doubled), 22, "what answers and pins need is more than that");
        assert_eq!(n_seq_max(4, 2, n_cells, 300, doubled), 127);
        assert_eq!(n_seq_max(100, 200, n_cells, 300, |n| n), 256);
        assert_eq!(n_seq_max(1, 0, n_cells, u64::MAX / 8, |n| n), 6);
    }

    #[test]
    fn what_prefixes_share_is_counted_once() {
        let texts =
            ["policy tools kitchen", "policy tools garage", "other", "policy tools kitchen and more"].map(tokens);
        let prefixes: Vec<&[Token]> = texts.iter().map(Vec::as_slice).collect();
        assert_eq!(union_len(&prefixes), 20 + 6 + 5 + 9);
        assert_eq!(union_len(&[]), 0);
    }

    #[test]
    fn pins_that_do_not_fit_are_refused_with_the_missing_number() {
        let pin = tokens(&"x".repeat(600));
        assert_eq!(check_pins(&[(Holder::HOUSE, &pin)], 600 + LEFT_FOR_REQUESTS, true), Ok(600));
        let error = check_pins(&[(Holder::HOUSE, &pin)], 1000, true).unwrap_err();
        assert_eq!(error.missing, 112);
        assert_eq!(
            error.to_string(),
            "pins need 600 cells and 512 must stay for requests, the context has 1000: 112 too few"
        );
        let twice: [(Holder, &[Token]); 2] = [(Holder::HOUSE, &pin), (Holder::HOUSE, &pin)];
        assert_eq!(check_pins(&twice, 1112, true), Ok(600));
        assert!(check_pins(&twice, 1112, false).is_err());
        let of_two = [(Holder::HOUSE, &*pin), (Holder::bare(Owner::Private([1; 32])), &*pin)];
        assert_eq!(check_pins(&of_two, 1200, true).unwrap_err().needed, 1200, "each may be held by itself");
    }
}
