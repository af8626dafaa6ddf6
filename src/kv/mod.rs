//! The K/V cache: what the cells hold and who may use how many.
//!
//! `tree` knows prefixes, `wholes` stands in for it where a memory cannot be cut, `budget` counts ids and cells, and `cache` joins
//! them over the engine. `segment` says what of it is kept outside the cells. All are pure but `cache`, which tells the engine
//! what to share and remove.

pub mod budget;
pub mod cache;
mod ghosts;
pub mod segment;
pub mod tiers;
pub mod tree;
pub mod value;
pub mod wholes;

pub use budget::{PinsTooLarge, check_pins};
pub use cache::{Cache, Cells, EvictionCause, Pinned, Standing};
pub use segment::{Header, Kept, Piece, PieceSize, PrefixHash, Segment, SegmentKey};
