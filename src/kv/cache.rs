//! The cache: tree and budget joined over the engine's cells. Everything that takes, shares or frees a cell goes through here.
//!
//! A running sequence *stands* on a node: it owns the cells of that path under its own id, plus *private* cells that the tree
//! does not know yet. The ranges of one sequence, half-open, from position 0:
//!
//! ```text
//!   0 ............... n_held ............. n_past ............ n_past + n_reserved
//!   | in the tree      | private            | promised
//!   | shared, locked   | computed by us     | not used yet
//! ```
//!
//! `publish` moves the border `n_held` up to `n_past`. Cells: `free + evictable + pinned + held = total`, where *held* counts
//! locked nodes and private cells.

mod restoring;
mod rewinding;
mod saving;

use tracing::error;

pub use self::restoring::{Restorable, Restored};
pub use self::rewinding::Checkpoint;
pub use self::saving::{Saved, Saving};
use super::budget::Ids;
use super::ghosts::{Ghosts, Lost, Missed};
use super::holder::Holder;
use super::refused::Refused;
use super::segment::{Header, SegmentKey};
use super::tiers::{Gone, Tiers};
use super::tree::{Leaf, NodeId, Tree};
use super::value::{Reuse, Speeds, compute};
use super::wholes::{Found, Wholes};
use crate::engine::{Engine, EngineError, Memory, SeqId};
use crate::request::{MissCause, Owner, Token};

/// So many tokens more under other adapters are a cause: turns begin alike, in the template's words, whatever is said in them.
const OTHERS_MIN: usize = 32;

/// A running sequence's place in the cache. Ends by `Cache::leave`, or its id and cells are lost.
#[derive(Debug)]
pub struct Standing {
    pub seq: SeqId,
    holder: Holder,
    node: NodeId,
    n_held: usize,
    n_private: usize,
    n_reserved: usize,
    /// Where it can be cut, rising.
    checkpoints: Vec<Checkpoint>,
}

impl Standing {
    /// Positions computed: the next token goes to this one.
    pub fn n_past(&self) -> usize {
        self.n_held + self.n_private
    }

    pub fn n_reserved(&self) -> usize {
        self.n_reserved
    }
}

/// A pinned prefix; `Cache::unpin` ends it.
#[derive(Debug)]
pub struct Pinned {
    holder: Holder,
    node: NodeId,
    tokens: Vec<Token>,
}

/// Cells by state; see the module's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    pub total: usize,
    pub free: usize,
    pub evictable: usize,
    pub pinned: usize,
    pub held: usize,
    pub reserved: usize,
}

/// Why something was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionCause {
    Cells,
    Ids,
    /// Nobody came back for a while, and idle cells slow every step.
    Idle,
    /// Its owner is to be forgotten.
    Forgotten,
}

impl EvictionCause {
    pub fn name(self) -> &'static str {
        match self {
            EvictionCause::Cells => "cells",
            EvictionCause::Ids => "ids",
            EvictionCause::Idle => "idle",
            EvictionCause::Forgotten => "forgotten",
        }
    }
}

#[derive(Debug)]
enum Store {
    Tree(Tree),
    Wholes(Wholes),
}

#[derive(Debug)]
pub struct Cache {
    store: Store,
    ids: Ids,
    n_cells: usize,
    n_private: usize,
    n_reserved: usize,
    ghosts: Ghosts,
    refused: Refused,
    evictions: Vec<(usize, EvictionCause)>,
    tiers: Tiers,
    speeds: Speeds,
    /// Positions of a piece at most.
    n_piece_max: usize,
    /// What saved cells take, as the last piece did.
    bytes_per_token: f64,
    /// What the last whole took; 0: none was saved yet.
    whole_bytes: u64,
    /// Whether sequences can be cut where a checkpoint was taken.
    is_checkpointed: bool,
    /// What the last checkpoint took; 0: none was taken yet.
    checkpoint_bytes: u64,
    /// What all of them take of the RAM budget.
    checkpoints_bytes: u64,
    gone: Vec<Gone>,
    to_write: Vec<SegmentKey>,
}

impl Cache {
    pub fn new(n_cells: usize, n_seq_max: usize, memory: Memory) -> Cache {
        let store = match memory {
            Memory::Rewindable => Store::Tree(Tree::new()),
            Memory::Opaque => Store::Wholes(Wholes::default()),
        };
        Cache {
            store,
            ids: Ids::new(n_seq_max),
            n_cells,
            n_private: 0,
            n_reserved: 0,
            ghosts: Ghosts::default(),
            refused: Refused::default(),
            evictions: Vec::new(),
            tiers: Tiers::default(),
            speeds: Speeds::default(),
            n_piece_max: 256,
            bytes_per_token: 0.0,
            whole_bytes: 0,
            is_checkpointed: false,
            checkpoint_bytes: 0,
            checkpoints_bytes: 0,
            gone: Vec::new(),
            to_write: Vec::new(),
        }
    }

    /// With tiers below the cells. `n_piece_max`: the engine's; `bytes_per_token`: what a saved cell is expected to take.
    pub fn with_tiers(mut self, tiers: Tiers, n_piece_max: usize, bytes_per_token: u64) -> Cache {
        self.tiers = tiers;
        self.n_piece_max = n_piece_max;
        self.bytes_per_token = bytes_per_token as f64;
        self
    }

    /// Of a memory whose sequences can be cut at checkpoints.
    pub fn with_checkpoints(mut self) -> Cache {
        self.is_checkpointed = true;
        self
    }

    /// The index of what is saved below the cells.
    pub fn tiers(&mut self) -> &mut Tiers {
        &mut self.tiers
    }

    pub fn speeds(&mut self) -> &mut Speeds {
        &mut self.speeds
    }

    /// Length of the longest held prefix of `tokens` that could be reused. Changes nothing.
    pub fn find(&self, holder: Holder, tokens: &[Token]) -> usize {
        match &self.store {
            Store::Tree(tree) => tree.find(holder, tokens).n_tokens,
            Store::Wholes(wholes) => wholes.find(holder, tokens).map_or(0, |found| found.n_tokens),
        }
    }

    /// Why the token behind the longest held prefix of `tokens` has to be computed. `last_cut`: the end of the last section
    /// before the conversation; what differs behind it is this conversation's own text and no miss.
    pub fn miss_cause(&self, holder: Holder, tokens: &[Token], last_cut: usize) -> MissCause {
        let (n_hit, continues) = match &self.store {
            Store::Tree(tree) => {
                let hit = tree.find(holder, tokens);
                (hit.n_tokens, hit.continues)
            }
            Store::Wholes(wholes) => {
                let n_hit = wholes.find(holder, tokens).map_or(0, |found| found.n_tokens);
                let n_saved = self.tiers.common_len(holder, tokens);
                if wholes.common_len(holder, tokens).max(n_saved) > n_hit {
                    return MissCause::Checkpoint;
                }
                (n_hit, false)
            }
        };
        if n_hit + 1 >= tokens.len() {
            MissCause::Appended
        } else if let Some(ghost) = self.ghosts.find(holder, &tokens[..=n_hit]) {
            match ghost.why {
                Lost::Evicted => MissCause::Evicted,
                Lost::TooLarge => MissCause::TooLarge,
                Lost::Failed => MissCause::RestoreFailed,
            }
        } else if let Some(cause) = self.refused.find(holder, tokens, n_hit) {
            cause
        } else if self.n_under_others(holder, tokens) >= n_hit + OTHERS_MIN {
            MissCause::Adapter
        } else if n_hit == 0 {
            MissCause::Cold
        } else if continues && n_hit < last_cut {
            MissCause::Diverged
        } else {
            MissCause::Appended
        }
    }

    /// How many of `tokens` `holder` could use, in the cells or below them, had they been computed under its adapters.
    fn n_under_others(&self, holder: Holder, tokens: &[Token]) -> usize {
        let in_cells = match &self.store {
            Store::Tree(tree) => tree.n_under_others(holder, tokens),
            Store::Wholes(wholes) => wholes.n_under_others(holder, tokens),
        };
        in_cells.max(self.tiers.n_under_others(holder, tokens))
    }

    /// A file that held `header` was of no use: a miss on what it held has this cause.
    pub fn refuse(&mut self, header: Header, cause: MissCause) {
        self.refused.remember(header, cause);
    }

    /// Whether anything can be kept below the cells.
    pub fn saves(&self) -> bool {
        let budgets = self.tiers.budgets();
        budgets.ram + budgets.disk > 0
    }

    /// How often what ends with `tokens` is expected to be used again.
    pub fn reuse(&self, holder: Holder, tokens: &[Token]) -> Reuse {
        match &self.store {
            Store::Tree(tree) => tree.reuse(tree.find(holder, tokens).node),
            Store::Wholes(_) => Reuse::Once,
        }
    }

    /// What of `tokens` behind the first `n_hit` was held once, and how much more RAM would have kept it.
    pub fn missed(&self, holder: Holder, tokens: &[Token], n_hit: usize) -> Option<Missed> {
        self.ghosts.missed(holder, tokens, n_hit)
    }

    /// A request for `tokens` was admitted: what it stands on is expected again. Gives the files that are of use to it.
    pub fn touch(&mut self, standing: &Standing, tokens: &[Token]) -> Vec<SegmentKey> {
        if let Store::Tree(tree) = &mut self.store {
            tree.hit(standing.node);
        }
        let chain = self.tiers.find(standing.holder, tokens);
        self.tiers.touch(&chain)
    }

    /// Stands a new sequence on the longest held prefix of `tokens` (all that may be reused: all but the last token of a
    /// prompt), if `n_needed(hit length)` more cells can be promised to it and an id can be had; else `None`, and only
    /// evictions for an id may have happened.
    pub fn stand<E: Engine>(
        &mut self,
        engine: &mut E,
        holder: Holder,
        tokens: &[Token],
        n_needed: impl Fn(usize) -> usize,
    ) -> Result<Option<Standing>, EngineError> {
        let standing = match &mut self.store {
            Store::Tree(tree) => {
                let hit = tree.find(holder, tokens);
                let n_reserved = n_needed(hit.n_tokens);
                let node = tree.lock(hit);
                let seq = if self.can_promise(n_reserved) { self.take_id(engine) } else { None };
                let Some(seq) = seq else {
                    self.tree().unlock(node);
                    return Ok(None);
                };
                let standing =
                    Standing { seq, holder, node, n_held: 0, n_private: 0, n_reserved, checkpoints: Vec::new() };
                self.n_reserved += n_reserved;
                self.share_up_to(engine, standing, hit.n_tokens)?
            }
            Store::Wholes(_) => match self.stand_on_whole(engine, holder, tokens, n_needed)? {
                Some(standing) => standing,
                None => return Ok(None),
            },
        };
        self.check();
        Ok(Some(standing))
    }

    /// Moves a standing sequence that computed nothing itself along what is held of `tokens` by now: how a follower takes
    /// its leader's new cells. Whole sequences have no followers: nothing happens.
    pub fn advance<E: Engine>(
        &mut self,
        engine: &mut E,
        standing: &mut Standing,
        tokens: &[Token],
    ) -> Result<(), EngineError> {
        debug_assert_eq!(standing.n_private, 0, "a follower computed nothing itself");
        let Store::Tree(tree) = &mut self.store else { return Ok(()) };
        let hit = tree.find(standing.holder, tokens);
        if hit.n_tokens <= standing.n_held {
            return Ok(());
        }
        let node = tree.lock(hit);
        let src = tree.seq_below(node).expect("a node with tokens has a leaf below it");
        // The longer prefix may be another copy, of another owner: what we stood on is given up for it, or its cells would stay
        // ours when the tree frees them.
        let is_same_path = tree.is_on_path(standing.node, node);
        let adopted = match is_same_path {
            true => Ok(()),
            false => engine.adopt(src, standing.seq, 0..standing.n_held),
        };
        let shared = adopted.and_then(|()| engine.share(src, standing.seq, standing.n_held..hit.n_tokens));
        if let Err(error) = shared {
            self.tree().unlock(node);
            return Err(error);
        }
        self.tree().unlock(standing.node);
        standing.node = node;
        standing.n_held = hit.n_tokens;
        self.check();
        Ok(())
    }

    /// Turns `n` promised cells of the sequence into private ones, evicting until they are free. To be called before they
    /// are computed; `vacate` takes it back.
    pub fn occupy<E: Engine>(&mut self, engine: &mut E, standing: &mut Standing, n: usize) {
        debug_assert!(n <= standing.n_reserved, "cells are promised before they are used");
        while self.n_free() < n {
            let evicted = self.evict(engine, EvictionCause::Cells);
            assert!(evicted, "what is promised can be evicted: reserved ≤ free + evictable");
        }
        standing.n_reserved -= n;
        self.n_reserved -= n;
        standing.n_private += n;
        self.n_private += n;
        self.check();
    }

    /// Takes back the last `n` private cells of a step that failed: they are promised again, and the engine is told.
    pub fn vacate<E: Engine>(&mut self, engine: &mut E, standing: &mut Standing, n: usize) -> Result<(), EngineError> {
        debug_assert!(n <= standing.n_private, "only private cells are vacated");
        standing.n_private -= n;
        self.n_private -= n;
        standing.n_reserved += n;
        self.n_reserved += n;
        let removed = engine.remove(standing.seq, standing.n_past());
        self.check();
        removed
    }

    /// Promises up to `n` more cells to the sequence; the number that could be promised.
    pub fn reserve(&mut self, standing: &mut Standing, n: usize) -> usize {
        let n = n.min(self.n_available());
        standing.n_reserved += n;
        self.n_reserved += n;
        self.check();
        n
    }

    /// Makes what the sequence computed findable: `tokens` are all its computed ones, `n_past` long.
    /// Whole sequences are found when they are finished: nothing happens.
    pub fn publish<E: Engine>(
        &mut self,
        engine: &mut E,
        standing: &mut Standing,
        tokens: &[Token],
    ) -> Result<(), EngineError> {
        debug_assert_eq!(tokens.len(), standing.n_past(), "published tokens are the computed ones");
        let Store::Tree(tree) = &mut self.store else { return Ok(()) };
        if standing.n_private == 0 {
            return Ok(());
        }
        let start = standing.n_held;
        // Another sequence may have computed the same tokens meanwhile: ours are given up for those, so that they are held once.
        let duplicate = tree.find_behind(standing.node, standing.holder, &tokens[start..]);
        let result = if duplicate.n_tokens > start {
            let src = tree.seq_below(duplicate.node).expect("a node with tokens has a leaf below it");
            engine.adopt(src, standing.seq, start..duplicate.n_tokens)
        } else {
            Ok(())
        };
        let extended = tree.extend(standing.node, standing.holder, &tokens[start..], standing.seq);
        self.n_private -= standing.n_private;
        standing.n_private = 0;
        standing.n_held = tokens.len();
        standing.node = extended.node;
        if let Some(released) = extended.released.filter(|&seq| !self.ids.is_running(seq)) {
            self.free_id(engine, released);
        }
        self.check();
        result
    }

    /// Ends a sequence; `tokens` are all its computed ones. What it computed stays findable and becomes evictable.
    pub fn leave<E: Engine>(&mut self, engine: &mut E, standing: Standing, tokens: &[Token]) {
        self.leave_for(engine, standing, tokens, false);
    }

    /// The same; `is_fleeting`: it is not expected again, nor saved.
    pub fn leave_for<E: Engine>(
        &mut self,
        engine: &mut E,
        mut standing: Standing,
        tokens: &[Token],
        is_fleeting: bool,
    ) {
        if let Err(error) = self.publish(engine, &mut standing, tokens) {
            error!(%error, seq = standing.seq.0, "publish");
        }
        self.n_reserved -= standing.n_reserved;
        let reuse = if is_fleeting { Reuse::Never } else { Reuse::Once };
        let is_kept = match &mut self.store {
            Store::Tree(tree) => {
                tree.unlock(standing.node);
                let is_kept = tree.seq(standing.node) == Some(standing.seq);
                if is_kept && is_fleeting {
                    tree.set_reuse(standing.node, Reuse::Never);
                }
                is_kept
            }
            Store::Wholes(wholes) => {
                self.n_private -= standing.n_private;
                let checkpoints = std::mem::take(&mut standing.checkpoints);
                let is_kept = !tokens.is_empty() && wholes.keep(standing.holder, tokens.to_vec(), standing.seq, reuse);
                match is_kept {
                    true => wholes.set_checkpoints(standing.seq, checkpoints),
                    false => self.drop_checkpoints(checkpoints),
                }
                is_kept
            }
        };
        self.ids.set_running(standing.seq, false);
        if !is_kept {
            self.free_id(engine, standing.seq);
        }
        self.check();
    }

    /// Ends a sequence whose cells can no longer be trusted: nothing private is kept.
    pub fn abandon<E: Engine>(&mut self, engine: &mut E, mut standing: Standing, tokens: &[Token]) {
        self.n_private -= standing.n_private;
        standing.n_private = 0;
        if let Err(error) = engine.remove(standing.seq, standing.n_held) {
            error!(%error, seq = standing.seq.0, "remove");
        }
        let n_held = standing.n_held;
        self.leave(engine, standing, &tokens[..n_held]);
    }

    /// Ends a sequence and pins all it computed.
    pub fn leave_pinned<E: Engine>(&mut self, engine: &mut E, mut standing: Standing, tokens: &[Token]) -> Pinned {
        if let Err(error) = self.publish(engine, &mut standing, tokens) {
            error!(%error, seq = standing.seq.0, "publish");
        }
        let pinned = Pinned { holder: standing.holder, node: standing.node, tokens: tokens.to_vec() };
        if let Store::Tree(tree) = &mut self.store {
            tree.pin(pinned.node);
        }
        self.leave(engine, standing, tokens);
        if let Store::Wholes(wholes) = &mut self.store {
            wholes.set_pinned(pinned.holder, tokens, true);
        }
        self.check();
        pinned
    }

    /// Makes a pinned prefix evictable.
    pub fn unpin(&mut self, pinned: Pinned) {
        match &mut self.store {
            Store::Tree(tree) => tree.unpin(pinned.node),
            Store::Wholes(wholes) => wholes.set_pinned(pinned.holder, &pinned.tokens, false),
        }
        self.check();
    }

    /// Evicts the leaf that is worth least, saved below the cells if that is worth it; `false` if there is none. Also the
    /// answer to `NoFreeCells`.
    pub fn evict<E: Engine>(&mut self, engine: &mut E, cause: EvictionCause) -> bool {
        match &self.store {
            Store::Tree(tree) => {
                let Some((leaf, priority)) = tree.least_valuable(|leaf| self.cost_back(leaf)) else { return false };
                self.tree().age(priority);
                self.evict_leaf(engine, leaf, cause);
            }
            Store::Wholes(wholes) => {
                let Some((seq, priority)) = wholes.least_valuable(|whole| compute(whole.tokens.len())) else {
                    return false;
                };
                if let Some(whole) = wholes.get(seq).filter(|whole| whole.reuse != Reuse::Never) {
                    let (holder, tokens, reuse) = (whole.holder, whole.tokens.clone(), whole.reuse);
                    self.save_whole(engine, holder, seq, &tokens, 0, reuse);
                }
                let Store::Wholes(wholes) = &mut self.store else { unreachable!("it was one above") };
                let whole = wholes.evict(seq, priority);
                let n_cells = whole.tokens.len();
                self.drop_checkpoints(whole.checkpoints);
                if self.tiers.find(whole.holder, &whole.tokens).n_tokens < n_cells {
                    let n_bytes = (self.bytes_per_token * n_cells as f64) as u64;
                    self.ghosts.remember(whole.holder, &whole.tokens[..1], Lost::Evicted, n_cells, n_bytes);
                }
                self.free_id(engine, seq);
                self.evictions.push((n_cells, cause));
            }
        }
        self.check();
        true
    }

    fn evict_leaf<E: Engine>(&mut self, engine: &mut E, leaf: Leaf, cause: EvictionCause) {
        if !leaf.saved.is_some_and(|key| self.tiers.contains(key)) {
            self.save_leaf(engine, leaf.node);
        }
        let evicted = self.tree().evict(leaf);
        let n_saved = self.tiers.find(evicted.holder, &evicted.path).n_tokens;
        let lost_from = n_saved.max(evicted.start);
        if lost_from < evicted.path.len() {
            let (lost, n_tokens) = (&evicted.path[..=lost_from], evicted.path.len() - lost_from);
            // One that never fitted below the cells stays known as that.
            if self.ghosts.find(evicted.holder, lost).is_none_or(|ghost| ghost.why == Lost::Evicted) {
                let n_bytes = (self.bytes_per_token * n_tokens as f64) as u64;
                self.ghosts.remember(evicted.holder, lost, Lost::Evicted, n_tokens, n_bytes);
            }
        }
        if evicted.inherited {
            if let Err(error) = engine.remove(evicted.seq, evicted.start) {
                error!(%error, seq = evicted.seq.0, "remove");
            }
        } else {
            self.free_id(engine, evicted.seq);
        }
        self.evictions.push((evicted.n_cells, cause));
    }

    /// Evicts, without saving it, what owners that are meant left and nobody stands on; the number of cells.
    pub fn forget<E: Engine>(&mut self, engine: &mut E, is_meant: impl Fn(Owner) -> bool) -> usize {
        let n_before = self.stored().0;
        match &self.store {
            Store::Tree(_) => {
                while let Store::Tree(tree) = &mut self.store
                    && let Some(leaf) = tree.leaf_of(&is_meant)
                {
                    tree.set_reuse(leaf.node, Reuse::Never);
                    self.evict_leaf(engine, leaf, EvictionCause::Forgotten);
                }
            }
            Store::Wholes(wholes) => {
                for seq in wholes.of(&is_meant) {
                    let Store::Wholes(wholes) = &mut self.store else { unreachable!("it was one above") };
                    if let Some(whole) = wholes.take(seq) {
                        self.evictions.push((whole.tokens.len(), EvictionCause::Forgotten));
                        self.drop_checkpoints(whole.checkpoints);
                        self.free_id(engine, seq);
                    }
                }
            }
        }
        self.check();
        n_before - self.stored().0
    }

    /// Lets go of what is saved below the cells and was not used since the last call but one. Gives the number of leaves.
    pub fn evict_idle<E: Engine>(&mut self, engine: &mut E) -> usize {
        let Store::Tree(tree) = &mut self.store else { return 0 };
        tree.next_epoch();
        let mut n_leaves = 0;
        while let Store::Tree(tree) = &self.store
            && let Some(leaf) = tree.idle_leaf(|leaf| leaf.saved.is_some_and(|key| self.tiers.contains(key)))
        {
            self.evict_leaf(engine, leaf, EvictionCause::Idle);
            n_leaves += 1;
        }
        self.check();
        n_leaves
    }

    /// The cost to get a leaf's cells back: the smaller of restoring, where it is saved, and computing.
    fn cost_back(&self, leaf: &Leaf) -> f64 {
        let compute = compute(leaf.n_cells);
        match leaf.saved.filter(|&key| self.tiers.contains(key)) {
            None => compute,
            Some(_) => compute.min(self.speeds.restore((self.bytes_per_token * leaf.n_cells as f64) as u64, 0)),
        }
    }

    /// Evictions since the last call.
    pub fn take_evictions(&mut self) -> Vec<(usize, EvictionCause)> {
        std::mem::take(&mut self.evictions)
    }

    /// Cells that could be promised now. Zero while a lock that is just being tried covers cells promised to others.
    pub fn n_available(&self) -> usize {
        (self.n_free() + self.n_evictable()).saturating_sub(self.n_reserved)
    }

    /// Whether `n` more cells can be promised without breaking an earlier promise.
    fn can_promise(&self, n: usize) -> bool {
        self.n_reserved + n <= self.n_free() + self.n_evictable()
    }

    /// Whether sequences may share cells, so that one can follow another.
    pub fn is_shared(&self) -> bool {
        matches!(self.store, Store::Tree(_))
    }

    pub fn cells(&self) -> Cells {
        let (n_stored, pinned, locked) = self.stored();
        Cells {
            total: self.n_cells,
            free: self.n_free(),
            evictable: n_stored - pinned - locked,
            pinned,
            held: locked + self.n_private,
            reserved: self.n_reserved,
        }
    }

    /// Panics unless every invariant holds. Costs a walk over the tree; runs after each operation in debug builds and tests.
    pub fn check(&self) {
        if !cfg!(any(debug_assertions, test)) {
            return;
        }
        if let Store::Tree(tree) = &self.store {
            tree.check();
        }
        let (n_stored, ..) = self.stored();
        assert!(n_stored + self.n_private <= self.n_cells, "no cell is counted twice");
        let cells = self.cells();
        assert_eq!(cells.free + cells.evictable + cells.pinned + cells.held, cells.total, "every cell has one state");
        assert!(cells.reserved <= cells.free + cells.evictable, "what is promised is there");
    }

    /// Free ids, ids of running sequences, and all.
    pub fn ids(&self) -> (usize, usize, usize) {
        (self.ids.n_free(), self.ids.n_running(), self.ids.total())
    }

    fn n_free(&self) -> usize {
        self.n_cells - self.stored().0 - self.n_private
    }

    fn n_evictable(&self) -> usize {
        let (n_stored, n_pinned, n_locked) = self.stored();
        n_stored - n_pinned - n_locked
    }

    /// Cells of the store: all, pinned, locked.
    fn stored(&self) -> (usize, usize, usize) {
        match &self.store {
            Store::Tree(tree) => (tree.n_cells(), tree.n_pinned(), tree.n_locked()),
            Store::Wholes(wholes) => (wholes.n_cells(), wholes.n_pinned(), 0),
        }
    }

    fn tree(&mut self) -> &mut Tree {
        match &mut self.store {
            Store::Tree(tree) => tree,
            Store::Wholes(_) => unreachable!("asked for by the tree's own branches"),
        }
    }

    /// An id, evicting leaves until one is free.
    fn take_id<E: Engine>(&mut self, engine: &mut E) -> Option<SeqId> {
        while self.ids.n_free() == 0 {
            if !self.evict(engine, EvictionCause::Ids) {
                return None;
            }
        }
        self.ids.take()
    }

    fn free_id<E: Engine>(&mut self, engine: &mut E, seq: SeqId) {
        match engine.remove(seq, 0) {
            Ok(()) => self.ids.free(seq),
            // An id whose cells stay is never handed out again: better one id fewer than a wrong prefix.
            Err(error) => error!(%error, seq = seq.0, "remove: the id is lost"),
        }
    }

    /// Shares the cells of the path that `standing` stands on, up to `n`.
    fn share_up_to<E: Engine>(
        &mut self,
        engine: &mut E,
        mut standing: Standing,
        n: usize,
    ) -> Result<Standing, EngineError> {
        if n > 0 {
            let src = self.tree().seq_below(standing.node).expect("a node with tokens has a leaf below it");
            if let Err(error) = engine.share(src, standing.seq, 0..n) {
                self.leave(engine, standing, &[]);
                return Err(error);
            }
        }
        standing.n_held = n;
        Ok(standing)
    }

    fn stand_on_whole<E: Engine>(
        &mut self,
        engine: &mut E,
        holder: Holder,
        tokens: &[Token],
        n_needed: impl Fn(usize) -> usize,
    ) -> Result<Option<Standing>, EngineError> {
        let root = Tree::new().root();
        let found = loop {
            let Store::Wholes(wholes) = &self.store else { unreachable!("asked for by the wholes' own branch") };
            let Some(found) = wholes.find(holder, tokens) else { break None };
            if found.is_pinned {
                break Some(found);
            }
            // Taken over: its evictable cells become ours, cut where the texts part.
            let Found { seq, n_tokens: n, is_cut, .. } = found;
            let n_reserved = n_needed(n);
            if !self.can_promise(n_reserved + n) {
                return Ok(None);
            }
            let checkpoints = match is_cut {
                true => self.rewind(engine, seq, n),
                false => self.take_whole(seq),
            };
            // What could not be cut is gone: there may be another.
            let Some(checkpoints) = checkpoints else { continue };
            self.ids.set_running(seq, true);
            self.n_private += n;
            self.n_reserved += n_reserved;
            return Ok(Some(Standing { seq, holder, node: root, n_held: 0, n_private: n, n_reserved, checkpoints }));
        };
        // Copied, if it is pinned; else from nothing. A copy needs cells of its own.
        let n_copied = found.map_or(0, |found| found.n_tokens);
        let n_reserved = n_needed(n_copied) + n_copied;
        if !self.can_promise(n_reserved) {
            return Ok(None);
        }
        let Some(seq) = self.take_id(engine) else { return Ok(None) };
        self.n_reserved += n_reserved;
        let mut standing =
            Standing { seq, holder, node: root, n_held: 0, n_private: 0, n_reserved, checkpoints: Vec::new() };
        if let Some(Found { seq: src, n_tokens: n, .. }) = found {
            self.occupy(engine, &mut standing, n);
            let copied = engine.copy_whole(src, seq);
            let is_whole = engine.held(seq).is_some_and(|held| held.end == n);
            if copied.is_err() || !is_whole {
                let vacated = self.vacate(engine, &mut standing, n);
                if let Err(error) = copied.and(vacated) {
                    self.abandon(engine, standing, &[]);
                    return Err(error);
                }
            }
        }
        Ok(Some(standing))
    }
}

#[cfg(test)]
mod tests;
