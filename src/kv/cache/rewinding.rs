//! Going back: a conversation that goes on with another end takes its own cells again, cut at a checkpoint.
//!
//! For memories of which a part goes forward only (`MemoryClass::Checkpointed`). A *checkpoint* is that part as it was at one
//! position; K and V of the layers that attend stay in the cells and are not in it. It belongs to the sequence that it was taken of
//! and goes when that leaves the cells: what is saved below them are wholes (`saving`).

use tracing::warn;

use super::{Cache, Standing, Store};
use crate::engine::{Engine, SeqId};
use crate::kv::value::Reuse;

/// Of one conversation: before its last two answers. Each may be hundreds of MiB on large hybrids.
const CHECKPOINTS_OF_A_CONVERSATION: usize = 2;

/// What a checkpoint takes of the RAM budget beside its bytes.
const OVERHEAD_BYTES: u64 = 64;

/// Where a sequence can be cut.
#[derive(Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub at: usize,
    pub bytes: Vec<u8>,
}

impl Checkpoint {
    fn n_bytes(&self) -> u64 {
        self.bytes.len() as u64 + OVERHEAD_BYTES
    }
}

impl Cache {
    /// Whether checkpoints are kept: a conversation can then go on with another end.
    pub fn rewinds(&self) -> bool {
        self.is_checkpointed && self.tiers.budgets().ram > 0
    }

    /// What the last checkpoint took; `None`: there was none yet.
    pub fn checkpoint_bytes(&self) -> Option<u64> {
        Some(self.checkpoint_bytes).filter(|&n_bytes| n_bytes > 0)
    }

    /// Lets the sequence be cut later where it ends now, if there is room in RAM.
    pub fn checkpoint<E: Engine>(&mut self, engine: &mut E, standing: &mut Standing) {
        let at = standing.n_past();
        if !self.rewinds() || standing.checkpoints.iter().any(|checkpoint| checkpoint.at >= at) {
            return;
        }
        let n_over = (standing.checkpoints.len() + 1).saturating_sub(CHECKPOINTS_OF_A_CONVERSATION);
        let old = standing.checkpoints.drain(..n_over).collect();
        self.drop_checkpoints(old);
        // All of them are of one size; the first one tells it.
        if !self.set_aside(self.checkpoint_bytes, at) {
            return;
        }
        let taken = engine.checkpoint(standing.seq);
        self.give_back(self.checkpoint_bytes);
        match taken {
            Ok(bytes) => {
                let checkpoint = Checkpoint { at, bytes };
                self.checkpoint_bytes = checkpoint.n_bytes();
                if self.set_aside(self.checkpoint_bytes, at) {
                    standing.checkpoints.push(checkpoint);
                }
            }
            Err(error) => warn!(%error, "no checkpoint can be taken"),
        }
    }

    /// Cuts an idle sequence at its checkpoint `at`; gives what it could be cut at still. `None`: it could not be cut, and is gone.
    pub(super) fn rewind<E: Engine>(&mut self, engine: &mut E, seq: SeqId, at: usize) -> Option<Vec<Checkpoint>> {
        let mut checkpoints = self.take_whole(seq)?;
        let n_kept = checkpoints.partition_point(|checkpoint| checkpoint.at <= at);
        let behind = checkpoints.split_off(n_kept);
        self.drop_checkpoints(behind);
        let checkpoint = checkpoints.last().expect("it was found by this checkpoint");
        match engine.rewind(seq, at, &checkpoint.bytes) {
            Ok(()) => Some(checkpoints),
            Err(error) => {
                warn!(%error, "a conversation cannot go back to its checkpoint");
                self.drop_checkpoints(checkpoints);
                self.free_id(engine, seq);
                None
            }
        }
    }

    /// Takes an idle sequence out as it is; gives what it can be cut at.
    pub(super) fn take_whole(&mut self, seq: SeqId) -> Option<Vec<Checkpoint>> {
        let Store::Wholes(wholes) = &mut self.store else { return None };
        wholes.take(seq).map(|whole| whole.checkpoints)
    }

    pub(super) fn drop_checkpoints(&mut self, dropped: Vec<Checkpoint>) {
        self.give_back(dropped.iter().map(Checkpoint::n_bytes).sum());
    }

    /// Checkpoints never wait for room that saved segments could give, nor take more than half of it: those serve all
    /// conversations, these the ones in the cells. The conversation that was used longest ago gives up its own first.
    fn set_aside(&mut self, n_bytes: u64, n_tokens: usize) -> bool {
        while self.checkpoints_bytes + n_bytes > self.tiers.budgets().ram / 2 {
            let Store::Wholes(wholes) = &mut self.store else { return false };
            let oldest = wholes.take_oldest_checkpoints();
            if oldest.is_empty() {
                return false;
            }
            self.drop_checkpoints(oldest);
        }
        let room = self.tiers.reserve(n_bytes, n_tokens, None, Reuse::Once, &self.speeds);
        self.settle();
        self.checkpoints_bytes += if room.is_ok() { n_bytes } else { 0 };
        room.is_ok()
    }

    fn give_back(&mut self, n_bytes: u64) {
        self.tiers.release(n_bytes);
        self.checkpoints_bytes -= n_bytes;
    }
}
