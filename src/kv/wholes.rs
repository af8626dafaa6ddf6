//! Whole sequences, for models whose memory is not proved to be rewindable (`Memory::Opaque`).
//!
//! A *whole* is a finished sequence that keeps its id and all its cells. It can be continued at its end and nowhere else:
//! taken over by the request that continues it, or, when it is pinned, copied. One with checkpoints is taken over by a request
//! that parts from it behind one, too, and cut there. Nothing is shared.

use super::cache::Checkpoint;
use super::holder::Holder;
use super::value::{Clock, Reuse};
use crate::engine::SeqId;
use crate::request::{Owner, Token};

#[derive(Debug)]
pub struct Whole {
    pub holder: Holder,
    pub tokens: Vec<Token>,
    pub seq: SeqId,
    pub is_pinned: bool,
    pub reuse: Reuse,
    /// Where it can be cut, rising.
    pub checkpoints: Vec<Checkpoint>,
    clock: Clock,
    /// Tick of the last use.
    used: u64,
}

impl Whole {
    fn n_common(&self, tokens: &[Token]) -> usize {
        self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count()
    }
}

/// What a request can begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    pub seq: SeqId,
    pub n_tokens: usize,
    pub is_pinned: bool,
    /// `n_tokens` is a checkpoint before its end.
    pub is_cut: bool,
}

/// All wholes. At most 256, as many as there are sequence ids, so every search is a walk.
#[derive(Debug, Default)]
pub struct Wholes {
    held: Vec<Whole>,
    tick: u64,
    /// Moves up to what is given up, in cost per cell.
    clock: Clock,
}

impl Wholes {
    /// What gives the longest beginning of `tokens` among all that `holder` may see: a whole that they continue, or one that can be
    /// cut where they still agree. Of equals the one that loses least. Changes nothing.
    pub fn find(&self, holder: Holder, tokens: &[Token]) -> Option<Found> {
        let visible = self.held.iter().filter(|whole| holder.may_see(whole.holder));
        let fitting = visible.filter_map(|whole| {
            let n_common = whole.n_common(tokens);
            let is_cut = n_common < whole.tokens.len();
            let before = || whole.checkpoints.iter().rev().find(|checkpoint| checkpoint.at <= n_common);
            let n_tokens = if is_cut { before()?.at } else { n_common };
            let found = Found { seq: whole.seq, n_tokens, is_pinned: whole.is_pinned, is_cut };
            (!is_cut || !whole.is_pinned).then_some((n_tokens, std::cmp::Reverse(whole.tokens.len()), found))
        });
        fitting.max_by_key(|&(n_tokens, n_all, _)| (n_tokens, n_all)).map(|(.., found)| found)
    }

    /// How many of `tokens` `holder` could use under other adapters.
    pub fn n_under_others(&self, holder: Holder, tokens: &[Token]) -> usize {
        let others = self.held.iter().filter(|whole| holder.would_see(whole.holder));
        let ended = others.filter(|whole| tokens.starts_with(&whole.tokens));
        ended.map(|whole| whole.tokens.len()).max().unwrap_or(0)
    }

    /// Longest common prefix with anything held: what would be reused if the memory could be cut.
    pub fn common_len(&self, holder: Holder, tokens: &[Token]) -> usize {
        self.held
            .iter()
            .filter(|whole| holder.may_see(whole.holder))
            .map(|whole| whole.n_common(tokens))
            .max()
            .unwrap_or(0)
    }

    /// Takes the whole of `seq` out: its cells are the caller's now.
    pub fn take(&mut self, seq: SeqId) -> Option<Whole> {
        let place = self.held.iter().position(|whole| whole.seq == seq)?;
        Some(self.held.swap_remove(place))
    }

    /// Keeps a finished sequence. One that holds the same tokens for the same holder already is used instead: `false`.
    pub fn keep(&mut self, holder: Holder, tokens: Vec<Token>, seq: SeqId, reuse: Reuse) -> bool {
        self.tick += 1;
        if let Some(same) = self.held.iter_mut().find(|whole| holder.may_see(whole.holder) && whole.tokens == tokens) {
            same.used = self.tick;
            same.clock = self.clock;
            same.reuse.hit();
            return false;
        }
        let checkpoints = Vec::new();
        self.held.push(Whole {
            holder,
            tokens,
            seq,
            is_pinned: false,
            reuse,
            checkpoints,
            clock: self.clock,
            used: self.tick,
        });
        true
    }

    pub fn set_checkpoints(&mut self, seq: SeqId, checkpoints: Vec<Checkpoint>) {
        let whole = self.held.iter_mut().find(|whole| whole.seq == seq);
        whole.expect("it was just kept").checkpoints = checkpoints;
    }

    /// Takes those of the whole that was used longest ago and has some; empty if none has.
    pub fn take_oldest_checkpoints(&mut self) -> Vec<Checkpoint> {
        let with_some = self.held.iter_mut().filter(|whole| !whole.checkpoints.is_empty());
        let oldest = with_some.min_by_key(|whole| whole.used);
        oldest.map(|whole| std::mem::take(&mut whole.checkpoints)).unwrap_or_default()
    }

    /// Marks the whole with exactly these tokens as pinned or not.
    pub fn set_pinned(&mut self, holder: Holder, tokens: &[Token], is_pinned: bool) {
        for whole in self.held.iter_mut().filter(|whole| whole.holder == holder && whole.tokens == tokens) {
            whole.is_pinned = is_pinned;
        }
    }

    /// The sequence of the whole that is worth least of those not pinned; of equals the one that was used longest ago.
    /// `cost`: of getting it back. With its priority, for `evict`.
    pub fn least_valuable(&self, cost: impl Fn(&Whole) -> f64) -> Option<(SeqId, f64)> {
        let unpinned = self.held.iter().filter(|whole| !whole.is_pinned);
        let valued = unpinned.map(|whole| {
            let priority = whole.clock.priority(whole.reuse, cost(whole), whole.tokens.len().max(1) as f64);
            (priority, whole.used, whole.seq)
        });
        let least = valued.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        least.map(|(priority, _, seq)| (seq, priority))
    }

    /// The unpinned ones of owners that are meant.
    pub fn of(&self, is_meant: impl Fn(Owner) -> bool) -> Vec<SeqId> {
        let meant = self.held.iter().filter(|whole| !whole.is_pinned && is_meant(whole.holder.owner));
        meant.map(|whole| whole.seq).collect()
    }

    /// Takes out what `least_valuable` gave; what stays ages by it.
    pub fn evict(&mut self, seq: SeqId, priority: f64) -> Whole {
        self.clock.advance(priority);
        self.take(seq).expect("what is worth least is held")
    }

    pub fn get(&self, seq: SeqId) -> Option<&Whole> {
        self.held.iter().find(|whole| whole.seq == seq)
    }

    pub fn n_cells(&self) -> usize {
        self.held.iter().map(|whole| whole.tokens.len()).sum()
    }

    pub fn n_pinned(&self) -> usize {
        self.held.iter().filter(|whole| whole.is_pinned).map(|whole| whole.tokens.len()).sum()
    }

    pub fn seqs(&self) -> impl Iterator<Item = SeqId> {
        self.held.iter().map(|whole| whole.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Holder = Holder::bare(Owner::Private([1; 32]));

    fn tokens(text: &str) -> Vec<Token> {
        text.bytes().map(|byte| Token(byte.into())).collect()
    }

    #[test]
    fn a_whole_is_continued_at_its_end_and_nowhere_else() {
        let mut wholes = Wholes::default();
        wholes.keep(ALICE, tokens("hello"), SeqId(1), Reuse::Once);
        assert_eq!(wholes.find(ALICE, &tokens("hello you")).map(|whole| whole.seq), Some(SeqId(1)));
        assert!(wholes.find(ALICE, &tokens("hell")).is_none());
        assert!(wholes.find(ALICE, &tokens("help me")).is_none());
        assert!(wholes.find(Holder::HOUSE, &tokens("hello you")).is_none(), "it is private");
        assert_eq!(wholes.common_len(ALICE, &tokens("help me")), 3);
    }

    #[test]
    fn a_whole_with_checkpoints_is_cut_at_the_last_one_where_the_texts_still_agree() {
        let mut wholes = Wholes::default();
        let checkpoints = |places: &[usize]| places.iter().map(|&at| Checkpoint { at, bytes: vec![] }).collect();
        wholes.keep(ALICE, tokens("hello you there"), SeqId(1), Reuse::Once);
        wholes.set_checkpoints(SeqId(1), checkpoints(&[4, 9]));
        let find = |wholes: &Wholes, text: &str| {
            let found = wholes.find(ALICE, &tokens(text))?;
            Some((found.seq.0, found.n_tokens, found.is_cut))
        };
        assert_eq!(find(&wholes, "hello you, Bob"), Some((1, 9, true)));
        assert_eq!(find(&wholes, "hello you"), Some((1, 9, true)), "it ends where it is cut");
        assert_eq!(find(&wholes, "hello yo"), Some((1, 4, true)));
        assert_eq!(find(&wholes, "hel"), None);
        assert_eq!(find(&wholes, "hello you there?"), Some((1, 15, false)));
        assert!(wholes.find(Holder::HOUSE, &tokens("hello you, Bob")).is_none(), "it is private");
        wholes.keep(ALICE, tokens("hello you"), SeqId(2), Reuse::Once);
        assert_eq!(find(&wholes, "hello you, Bob"), Some((2, 9, false)), "nothing is lost for it");
        wholes.take(SeqId(2));
        wholes.set_pinned(ALICE, &tokens("hello you there"), true);
        assert_eq!(find(&wholes, "hello you, Bob"), None, "a pin is never cut");
        assert_eq!(wholes.take_oldest_checkpoints().len(), 2);
        assert!(wholes.take_oldest_checkpoints().is_empty());
    }

    #[test]
    fn the_whole_that_is_worth_least_goes_first_and_a_pinned_one_never() {
        let mut wholes = Wholes::default();
        wholes.keep(Holder::HOUSE, tokens("pin"), SeqId(0), Reuse::Once);
        wholes.set_pinned(Holder::HOUSE, &tokens("pin"), true);
        wholes.keep(ALICE, tokens("one"), SeqId(1), Reuse::Once);
        wholes.keep(ALICE, tokens("two"), SeqId(2), Reuse::Once);
        assert!(!wholes.keep(ALICE, tokens("one"), SeqId(3), Reuse::Once), "held already, and used now");
        let evict = |wholes: &mut Wholes| {
            let (seq, priority) = wholes.least_valuable(|whole| whole.tokens.len() as f64)?;
            Some(wholes.evict(seq, priority).seq)
        };
        assert_eq!(evict(&mut wholes), Some(SeqId(2)));
        assert_eq!(evict(&mut wholes), Some(SeqId(1)));
        assert_eq!(evict(&mut wholes), None);
    }
}
