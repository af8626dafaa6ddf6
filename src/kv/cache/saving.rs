//! Out of the cells: a prefix is copied piece by piece to where the tiers keep it.
//!
//! What the tiers cover already is not copied again; the rest becomes segments that end where sections of the prompt end, so
//! that a document that changes replaces its own. Nothing is locked meanwhile: each piece is looked up anew, and what was evicted
//! in between ends the saving.

use tracing::warn;

use super::{Cache, Store};
use crate::engine::{Engine, SeqId};
use crate::kv::ghosts::Lost;
use crate::kv::holder::Holder;
use crate::kv::segment::{Kept, Piece, Segment, SegmentKey};
use crate::kv::tiers::{Gone, GoneCause, NoRoom};
use crate::kv::tree::NodeId;
use crate::kv::value::Reuse;
use crate::request::Token;

/// Fewer tokens are computed sooner than their own piece is read and checked.
const SEGMENT_MIN: usize = 16;

/// A section's own segment is worth its file from this length on.
const SECTION_MIN: usize = 64;

/// What a segment may hold, in bytes, if a shorter one can be: on its way from or to disk one segment lies in RAM beside the
/// budget.
const SEGMENT_BYTES_MAX: f64 = (32 << 20) as f64;

/// Tokens of a piece at least, however large they are: each piece costs a call and a step.
const PIECE_MIN: usize = 64;

/// A prefix on its way out of the cells.
#[derive(Debug)]
pub struct Saving {
    holder: Holder,
    tokens: Vec<Token>,
    cuts: Vec<usize>,
    kept: Kept,
    run: Option<Run>,
    /// The last segment that went to disk beside the RAM budget.
    passed: Option<SegmentKey>,
    /// The disk has no room for one, or failed: from then on this goes to RAM, or it would be copied for ever.
    is_refused: bool,
}

/// The segment that is being copied.
#[derive(Debug)]
struct Run {
    holder: Holder,
    kept: Kept,
    start: usize,
    end: usize,
    pieces: Vec<Piece>,
    /// Of the RAM budget.
    reserved: u64,
    /// It goes to disk at once, beside the RAM budget.
    is_passing: bool,
}

impl Run {
    fn pos(&self) -> usize {
        self.start + self.pieces.iter().map(|piece| piece.n_tokens).sum::<usize>()
    }
}

impl Saving {
    /// Of all that `tokens` hold. `cuts`: where sections end, rising.
    pub fn new(holder: Holder, tokens: Vec<Token>, cuts: Vec<usize>, kept: Kept) -> Saving {
        Saving { holder, tokens, cuts, kept, run: None, passed: None, is_refused: false }
    }

    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    pub fn holder(&self) -> Holder {
        self.holder
    }
}

/// What one call of `save_piece` did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saved {
    /// A piece was copied, and more follow.
    Piece,
    /// A segment is complete. `is_passing`: it has to be written now.
    Segment { key: SegmentKey, is_passing: bool },
    /// Another segment is on its way to disk; nothing was done.
    Waits,
    /// There is nothing more to save, or it cannot be had any more.
    Done,
}

impl Cache {
    /// Copies the next piece of `saving` out of the cells.
    pub fn save_piece<E: Engine>(&mut self, engine: &mut E, saving: &mut Saving) -> Saved {
        let mut run = match saving.run.take() {
            Some(run) => run,
            None => match self.begin_run(saving) {
                Ok(Some(run)) => run,
                Ok(None) => return Saved::Done,
                Err(()) => return Saved::Waits,
            },
        };
        let pos = run.pos();
        let end = (pos + self.piece_len()).min(run.end);
        let Some(seq) = self.source(run.holder, &saving.tokens[..end]) else {
            self.end_run(run);
            return Saved::Done;
        };
        match engine.save(seq, pos..end) {
            Ok(bytes) => {
                self.bytes_per_token = bytes.len() as f64 / (end - pos) as f64;
                run.pieces.push(Piece { n_tokens: end - pos, bytes: bytes.into() });
            }
            Err(error) => {
                warn!(%error, "cells cannot be saved");
                self.end_run(run);
                return Saved::Done;
            }
        }
        if end < run.end {
            saving.run = Some(run);
            return Saved::Piece;
        }
        let (start, holder, kept, is_passing) = (run.start, run.holder, run.kept, run.is_passing);
        let pieces = std::mem::take(&mut run.pieces);
        self.end_run(run);
        let path = &saving.tokens[..end];
        let segment = Segment::new(holder, kept, false, path, start, pieces);
        let key = segment.header.key;
        let reuse = self.reuse(saving.holder, path);
        let is_in = self.tiers.insert(path, segment, reuse, is_passing, &self.speeds);
        self.settle();
        if !is_in {
            return Saved::Done;
        }
        if let Store::Tree(tree) = &mut self.store {
            let hit = tree.find(saving.holder, path);
            if hit.n_tokens == end && tree.end(hit.node) == end {
                tree.set_saved(hit.node, key);
            }
        }
        saving.passed = is_passing.then_some(key);
        Saved::Segment { key, is_passing }
    }

    /// Gives up what was set aside for a saving that will not go on.
    pub fn drop_saving(&mut self, saving: Saving) {
        if let Some(run) = saving.run {
            self.end_run(run);
        }
    }

    fn end_run(&mut self, run: Run) {
        self.tiers.release(run.reserved);
    }

    /// The next segment of what is not covered; `Err`: not now.
    fn begin_run(&mut self, saving: &mut Saving) -> Result<Option<Run>, ()> {
        if self.tiers.is_any_passing() && saving.passed.is_some() {
            return Err(());
        }
        saving.is_refused |= saving.passed.take().is_some_and(|key| !self.tiers.contains(key));
        let Saving { holder, tokens, .. } = &*saving;
        let budgets = self.tiers.budgets();
        let chain = self.tiers.find(*holder, tokens);
        let (start, parent) = (chain.n_tokens, chain.links.last().map(|link| link.key));
        if tokens.len() - start < SEGMENT_MIN || budgets.ram + budgets.disk == 0 {
            return Ok(None);
        }
        // The house's own text is saved once, for the house, whoever's conversation stands on it.
        let (run_holder, all) = self.holder_at(*holder, tokens, start);
        let n_learned = self.tiers.held().learned + self.n_bytes(all - start);
        let kept = match (run_holder.is_house(), saving.kept) {
            (true, _) => Kept::Pin,
            // Beyond its share it is saved like anything else; older learned ones may give way to it afterwards.
            (_, Kept::Learned) if n_learned > budgets.learned => Kept::Private,
            (_, kept) => kept,
        };
        let reuse = self.reuse(*holder, tokens);
        let comes_back = matches!(reuse, Reuse::Hits(_));
        let goes_at_once = kept != Kept::Private || (budgets.ram == 0 && comes_back);
        let is_passing = budgets.disk > 0 && goes_at_once && !saving.is_refused;
        if is_passing && self.tiers.is_any_passing() {
            return Err(());
        }
        let end = self.run_end(saving, start, all);
        let mut reserved = 0;
        if !is_passing {
            if budgets.ram == 0 {
                return Ok(None);
            }
            let n_all = self.n_bytes(all - start);
            let room = match n_all > budgets.ram {
                true => Err(NoRoom::TooLarge),
                false => {
                    reserved = self.n_bytes(end - start);
                    self.tiers.reserve(reserved, end - start, parent, reuse, &self.speeds)
                }
            };
            self.settle();
            match room {
                Ok(()) => {}
                Err(NoRoom::WorthLess) => return Ok(None),
                Err(NoRoom::TooLarge) => {
                    self.ghosts.remember(*holder, &tokens[..=start], Lost::TooLarge, all - start, n_all);
                    return Ok(None);
                }
            }
        }
        Ok(Some(Run { holder: run_holder, kept, start, end, pieces: Vec::new(), reserved, is_passing }))
    }

    /// Where the segment that begins at `start` ends: at the next cut, or where it is large enough.
    fn run_end(&self, saving: &Saving, start: usize, all: usize) -> usize {
        let n_max = (SEGMENT_BYTES_MAX / self.bytes_per_token.max(1.0)) as usize;
        let piece_len = self.piece_len();
        let n_max = (n_max / piece_len * piece_len).max(piece_len);
        let is_fit = |cut: usize| cut >= start + SECTION_MIN && cut < all;
        let cut = saving.cuts.iter().copied().find(|&cut| is_fit(cut)).unwrap_or(all);
        cut.min(start + n_max)
    }

    fn piece_len(&self) -> usize {
        let fitting = (SEGMENT_BYTES_MAX / self.bytes_per_token.max(1.0)) as usize;
        self.n_piece_max.min(fitting.max(PIECE_MIN)).max(1)
    }

    /// What `n_tokens` take of the RAM budget, before they are copied: a little more than the last ones took.
    fn n_bytes(&self, n_tokens: usize) -> u64 {
        let n_pieces = n_tokens.div_ceil(self.piece_len()) as u64;
        (self.bytes_per_token * n_tokens as f64 * 1.02) as u64 + 4 * n_tokens as u64 + 512 * (n_pieces + 1)
    }

    /// Who left the token at `start` of `tokens` in the cells, and up to where the same did.
    fn holder_at(&self, holder: Holder, tokens: &[Token], start: usize) -> (Holder, usize) {
        let n_public = match &self.store {
            Store::Tree(tree) if !holder.is_house() => tree.find(holder.house(), tokens).n_tokens,
            _ => 0,
        };
        if n_public >= start + SEGMENT_MIN { (holder.house(), n_public) } else { (holder, tokens.len()) }
    }

    /// A sequence that owns the cells of all of `tokens`.
    fn source(&self, holder: Holder, tokens: &[Token]) -> Option<SeqId> {
        let Store::Tree(tree) = &self.store else { return None };
        let hit = tree.find(holder, tokens);
        if hit.n_tokens == tokens.len() { tree.seq_below(hit.node) } else { None }
    }

    /// Copies what the tiers do not cover of a leaf that is about to lose its cells, if that is worth it.
    pub(super) fn save_leaf<E: Engine>(&mut self, engine: &mut E, node: NodeId) {
        let Store::Tree(tree) = &self.store else { return };
        let holder = tree.holder(node);
        if !self.saves() || tree.reuse(node) == Reuse::Never {
            return;
        }
        let kept = if holder.is_house() { Kept::Pin } else { Kept::Private };
        let mut saving = Saving::new(holder, tree.path(node), Vec::new(), kept);
        loop {
            match self.save_piece(engine, &mut saving) {
                Saved::Piece => {}
                Saved::Segment { key, is_passing } if is_passing => self.to_write.push(key),
                Saved::Segment { .. } => {}
                Saved::Waits | Saved::Done => break,
            }
        }
        self.drop_saving(saving);
    }

    /// Saves a memory that cannot be cut, as it is now: `tokens` are all it has computed. Once a later token is computed, this
    /// state is gone.
    pub fn save_whole<E: Engine>(
        &mut self,
        engine: &mut E,
        holder: Holder,
        seq: SeqId,
        tokens: &[Token],
        last_cut: usize,
        reuse: Reuse,
    ) {
        let n = tokens.len();
        let budgets = self.tiers.budgets();
        let kept = if holder.is_house() { Kept::Pin } else { Kept::Private };
        let is_passing = kept == Kept::Pin && budgets.disk > 0 && !self.tiers.is_any_passing();
        if n < SEGMENT_MIN || (budgets.ram == 0 && !is_passing) || self.tiers.find(holder, tokens).n_tokens == n {
            return;
        }
        let n_expected = match (is_passing, self.whole_bytes) {
            (true, _) => 0,
            (false, 0) => self.n_bytes(n),
            (false, last) => last,
        };
        let room = self.tiers.reserve(n_expected, n, None, reuse, &self.speeds);
        self.settle();
        match room {
            Ok(()) => {}
            Err(NoRoom::WorthLess) => return,
            Err(NoRoom::TooLarge) => {
                self.ghosts.remember(holder, &tokens[..1], Lost::TooLarge, n, n_expected);
                return;
            }
        }
        let saved = engine.save(seq, 0..n);
        self.tiers.release(n_expected);
        match saved {
            Ok(bytes) => {
                self.whole_bytes = bytes.len() as u64 + 4 * n as u64 + 1024;
                let piece = Piece { n_tokens: n, bytes: bytes.into() };
                let segment = Segment::new(holder, kept, true, tokens, 0, vec![piece]);
                let key = segment.header.key;
                if self.tiers.insert(tokens, segment, reuse, is_passing, &self.speeds) {
                    self.to_write.extend(is_passing.then_some(key));
                    self.tiers.thin_wholes(holder, tokens, last_cut, WHOLES_OF_A_CONVERSATION);
                }
                self.settle();
            }
            Err(error) => warn!(%error, "a memory cannot be saved"),
        }
    }

    /// What left the tiers becomes a ghost, and news for whoever asks.
    pub(super) fn settle(&mut self) {
        for mut gone in self.tiers.take_gone() {
            if let Some(lost) = gone.lost.take() {
                let why = if gone.cause == GoneCause::Failed { Lost::Failed } else { Lost::Evicted };
                self.ghosts.remember(gone.holder, &lost, why, gone.n_tokens, gone.n_bytes);
            }
            self.gone.push(gone);
        }
    }

    /// What left a tier below the cells since the last call.
    pub fn take_gone(&mut self) -> Vec<Gone> {
        self.settle();
        std::mem::take(&mut self.gone)
    }

    /// Segments that have to be written now, saved while their cells were taken.
    pub fn take_to_write(&mut self) -> Vec<SegmentKey> {
        std::mem::take(&mut self.to_write)
    }
}

/// Of one conversation: where its last two turns ended. Each may be hundreds of MiB on large hybrids.
const WHOLES_OF_A_CONVERSATION: usize = 2;
