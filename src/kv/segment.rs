//! Segments: runs of tokens whose K/V was copied out of the cells, as bytes.
//!
//! A *segment* stands behind a prefix that it does not hold itself: with its parents, the segments before it, it spells a
//! prefix that was computed. Its bytes come in *pieces*, each from one save and for one restore. What the bytes mean, only
//! the engine that made them knows; where they lie is not known here.

use std::sync::Arc;

use super::holder::Holder;
use crate::request::Token;

/// Names a segment: equal for equal tokens behind equal tokens, of one holder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentKey(pub [u8; 32]);

impl SegmentKey {
    pub fn of(holder: Holder, is_whole: bool, prefix: PrefixHash, tokens: &[Token]) -> SegmentKey {
        let mut hasher = blake3::Hasher::new();
        holder.hash(&mut hasher);
        hasher.update(&[u8::from(is_whole)]).update(&prefix.0);
        update(&mut hasher, tokens);
        SegmentKey(*hasher.finalize().as_bytes())
    }

    /// 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// What `hex` gave.
    pub fn from_hex(digits: &str) -> Option<SegmentKey> {
        blake3::Hash::from_hex(digits).ok().map(|hash| SegmentKey(*hash.as_bytes()))
    }
}

impl std::fmt::Debug for SegmentKey {
    /// The first 8 of 64 digits: enough to tell segments apart in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.hex()[..8])
    }
}

/// BLAKE3 of all tokens in front of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PrefixHash(pub [u8; 32]);

impl PrefixHash {
    pub fn of(tokens: &[Token]) -> PrefixHash {
        let mut hasher = blake3::Hasher::new();
        update(&mut hasher, tokens);
        PrefixHash(*hasher.finalize().as_bytes())
    }
}

/// How long a segment is worth keeping, whatever else happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// As long as it is configured.
    Pin,
    /// A prefix that its owner sent often.
    Learned,
    /// As long as there is room, and no longer than private text may lie around.
    Private,
}

/// What is known of a segment without its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    pub key: SegmentKey,
    pub holder: Holder,
    pub kept: Kept,
    /// The state of a memory that cannot be cut: it stands for all tokens from 0, and can be continued at its end only.
    pub is_whole: bool,
    /// Position of its first token; 0 if it is a whole.
    pub start: usize,
    /// Of the tokens before `start`.
    pub prefix: PrefixHash,
    pub tokens: Arc<[Token]>,
    /// Sizes of its pieces, in order; their tokens are `tokens` together.
    pub pieces: Arc<[PieceSize]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceSize {
    pub n_tokens: usize,
    pub n_bytes: usize,
}

/// The bytes of one piece, as the engine gave them.
#[derive(Clone, PartialEq, Eq)]
pub struct Piece {
    pub n_tokens: usize,
    pub bytes: Box<[u8]>,
}

impl std::fmt::Debug for Piece {
    /// Without the bytes: they are private, and many.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tokens in {} bytes", self.n_tokens, self.bytes.len())
    }
}

/// A segment with its bytes. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    pub header: Header,
    pub pieces: Arc<[Piece]>,
}

impl Segment {
    /// The run `tokens[start..]` of the prefix `tokens`, saved in `pieces`. A whole has `start` 0 and one piece.
    pub fn new(
        holder: Holder,
        kept: Kept,
        is_whole: bool,
        tokens: &[Token],
        start: usize,
        pieces: Vec<Piece>,
    ) -> Segment {
        debug_assert_eq!(pieces.iter().map(|piece| piece.n_tokens).sum::<usize>(), tokens.len() - start);
        debug_assert!(!is_whole || (start == 0 && pieces.len() == 1), "a whole is one piece from 0");
        let prefix = PrefixHash::of(&tokens[..start]);
        let run = &tokens[start..];
        let sizes = pieces.iter().map(|piece| PieceSize { n_tokens: piece.n_tokens, n_bytes: piece.bytes.len() });
        let header = Header {
            key: SegmentKey::of(holder, is_whole, prefix, run),
            holder,
            kept,
            is_whole,
            start,
            prefix,
            tokens: run.into(),
            pieces: sizes.collect(),
        };
        Segment { header, pieces: pieces.into() }
    }
}

impl Header {
    /// Position behind its last token.
    pub fn end(&self) -> usize {
        self.start + self.tokens.len()
    }

    /// Bytes of all its pieces.
    pub fn n_bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.n_bytes).sum()
    }
}

fn update(hasher: &mut blake3::Hasher, tokens: &[Token]) {
    // In runs, so that no copy of a long prefix is made.
    let mut bytes = [0; 4 * 256];
    for run in tokens.chunks(256) {
        for (place, token) in bytes.chunks_exact_mut(4).zip(run) {
            place.copy_from_slice(&token.0.to_le_bytes());
        }
        hasher.update(&bytes[..4 * run.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{AdapterSet, Owner, Scale};

    fn tokens(range: std::ops::Range<i32>) -> Vec<Token> {
        range.map(Token).collect()
    }

    #[test]
    fn a_key_tells_holder_prefix_and_run_apart() {
        let alice = Holder::bare(Owner::Private([1; 32]));
        let key = |holder, is_whole, prefix, run| {
            SegmentKey::of(holder, is_whole, PrefixHash::of(&tokens(prefix)), &tokens(run))
        };
        let this = key(alice, false, 0..3, 3..9);
        assert_eq!(this, key(alice, false, 0..3, 3..9));
        for other in [
            key(Holder::HOUSE, false, 0..3, 3..9),
            key(Holder::bare(Owner::Private([2; 32])), false, 0..3, 3..9),
            key(Holder { adapters: AdapterSet::NONE.with(0, Scale::ONE), ..alice }, false, 0..3, 3..9),
            key(Holder { adapters: AdapterSet::NONE.with(1, Scale::ONE), ..alice }, false, 0..3, 3..9),
            key(alice, true, 0..3, 3..9),
            key(alice, false, 1..3, 3..9),
            key(alice, false, 0..3, 3..8),
        ] {
            assert_ne!(this, other);
        }
    }

    #[test]
    fn a_prefix_is_hashed_alike_whatever_its_length() {
        let long = tokens(0..700);
        let bytes: Vec<u8> = long.iter().flat_map(|token| token.0.to_le_bytes()).collect();
        assert_eq!(PrefixHash::of(&long).0, *blake3::hash(&bytes).as_bytes());
    }
}
