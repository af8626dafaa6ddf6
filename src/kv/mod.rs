//! The K/V cache: what the cells hold and who may use how many.
//!
//! `holder` says whose a prefix is, `tree` knows prefixes, `wholes` stands in for it where a memory cannot be cut, `budget` counts ids and cells, and `cache` joins
//! them over the engine. `segment` is what can be kept outside the cells, `tiers` the index of what is, `value` what all of it is
//! worth, `learned` what clients send so often that it is kept like a pin, `refused` what lay on disk and was of no use. All are pure but `cache`, which tells the engine what to share, remove, save and restore.

pub mod budget;
pub mod cache;
mod ghosts;
mod holder;
pub mod learned;
mod refused;
pub mod segment;
pub mod tiers;
pub mod tree;
pub mod value;
pub mod wholes;

pub use budget::{PinsTooLarge, check_pins};
pub use cache::{Cache, Cells, EvictionCause, Pinned, Restorable, Restored, Saved, Saving, Standing};
pub use ghosts::Missed;
pub use holder::Holder;
pub use segment::{Header, Kept, Piece, PieceSize, PrefixHash, Segment, SegmentKey};
pub use tiers::{Budgets, Gone, Tier, Tiers};
