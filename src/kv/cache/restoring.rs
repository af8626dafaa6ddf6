//! Back into the cells: a saved prefix is put behind what a sequence stands on, piece by piece, and found by others from then on.

use tracing::warn;

use super::{Cache, Standing, Store};
use crate::engine::Engine;
use crate::kv::holder::Holder;
use crate::kv::segment::{Segment, SegmentKey};
use crate::kv::tiers::GoneCause;
use crate::request::Token;

/// Fewer tokens are computed in about the time that a piece takes.
const RESTORE_MIN: usize = 16;

/// A prefix that could be restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restorable {
    /// Tokens that are there when it is done.
    pub n_tokens: usize,
    /// Where to stand: pieces cannot be begun in their middle.
    pub n_stand: usize,
    /// Whether that is sooner done than computing them.
    pub is_faster: bool,
    /// Bytes of it that have to be read first.
    pub n_disk_bytes: u64,
}

/// What one call of `restore_piece` did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restored {
    /// These many tokens are there now, copied as so many bytes. `was_read`: from what came from disk.
    Piece { n_tokens: usize, n_bytes: u64, was_read: bool },
    /// The next piece has to be read first.
    OnDisk(SegmentKey),
    /// There is nothing more to restore, or no room for it: the rest is computed.
    Done,
    /// A piece could not be put back; its segment is given up.
    Failed,
}

impl Cache {
    /// What of `tokens` (all that may be reused) the tiers could bring back beside what the cells hold.
    pub fn restorable(&self, holder: Holder, tokens: &[Token]) -> Option<Restorable> {
        let n_cells = self.find(holder, tokens);
        let chain = self.tiers.find(holder, tokens);
        if chain.n_tokens < n_cells + RESTORE_MIN {
            return None;
        }
        let n_stand = match self.store {
            Store::Tree(_) => self.tiers.place(&chain, n_cells)?.range.start,
            Store::Wholes(_) => 0,
        };
        let (in_ram, on_disk) = self.tiers.bytes_behind(&chain, n_stand);
        let is_faster = self.speeds.restores_faster(chain.n_tokens - n_cells, in_ram, on_disk);
        Some(Restorable { n_tokens: chain.n_tokens, n_stand, is_faster, n_disk_bytes: on_disk })
    }

    /// Puts the next piece of what is saved of `tokens` behind what the sequence has. `from_disk`: the segment that was read
    /// for it, if one was.
    pub fn restore_piece<E: Engine>(
        &mut self,
        engine: &mut E,
        standing: &mut Standing,
        tokens: &[Token],
        from_disk: Option<&Segment>,
    ) -> Restored {
        let n_past = standing.n_past();
        let chain = self.tiers.find(standing.holder, tokens);
        let Some(place) = self.tiers.place(&chain, n_past).filter(|place| place.range.start == n_past) else {
            return Restored::Done;
        };
        let read = from_disk.filter(|segment| segment.header.key == place.key).map(|segment| segment.pieces.clone());
        let was_read = read.is_some();
        let Some(pieces) = place.pieces.or(read) else { return Restored::OnDisk(place.key) };
        // The last piece may hold more than is wanted: those cells are needed for a moment.
        let n = place.range.len();
        let n_short = n.saturating_sub(standing.n_reserved());
        if self.reserve(standing, n_short) < n_short {
            return Restored::Done;
        }
        self.occupy(engine, standing, n);
        // Making room for it may have changed what is saved, not what was looked up.
        let restored = engine.restore(standing.seq, place.range.clone(), &pieces[place.index].bytes);
        let n_back = if restored.is_ok() { place.range.end - place.upto } else { n };
        if n_back > 0
            && let Err(error) = self.vacate(engine, standing, n_back)
        {
            warn!(%error, "cells behind a restored prefix");
            return Restored::Failed;
        }
        if let Err(error) = restored {
            warn!(%error, segment = ?place.key, "a saved prefix cannot be restored");
            self.tiers.lose(place.key, GoneCause::Failed);
            self.settle();
            return Restored::Failed;
        }
        if let Err(error) = self.publish(engine, standing, &tokens[..place.upto]) {
            warn!(%error, "publish");
            return Restored::Failed;
        }
        if let Store::Tree(tree) = &mut self.store {
            tree.set_saved(standing.node, place.key);
        }
        Restored::Piece { n_tokens: place.upto - n_past, n_bytes: place.n_bytes as u64, was_read }
    }
}
