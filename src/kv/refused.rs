//! What lay on disk and was not taken in: a miss on it can be explained.
//!
//! *Refused* is a file that was written under another model or other settings, was damaged, or was not used for too long. It is
//! gone; only its header is remembered, which takes four bytes a token of what the disk held. Files are not known here.

use super::holder::Holder;
use super::segment::{Header, PrefixHash};
use crate::request::{MissCause, Token};

#[derive(Debug, Default)]
pub(super) struct Refused {
    headers: Vec<(Header, MissCause)>,
}

impl Refused {
    pub(super) fn remember(&mut self, header: Header, cause: MissCause) {
        self.headers.push((header, cause));
    }

    /// Why the token behind `tokens[..n_hit]` is not there: the newest file that would have had it. Token ids are compared; what
    /// stands before the file's own tokens by its hash.
    pub(super) fn find(&self, holder: Holder, tokens: &[Token], n_hit: usize) -> Option<MissCause> {
        let would_have_had_it = |(header, cause): &&(Header, MissCause)| {
            let own = header.start..=n_hit;
            // What such a file was computed under, nobody can say here any more.
            let is_visible = match cause {
                MissCause::Adapter => holder.owner.may_see(header.holder.owner),
                _ => holder.may_see(header.holder),
            };
            is_visible
                && own.contains(&n_hit)
                && n_hit < header.end().min(tokens.len())
                && header.tokens[..=n_hit - header.start] == tokens[own]
                && header.prefix == PrefixHash::of(&tokens[..header.start])
        };
        let found = self.headers.iter().rev().find(would_have_had_it);
        found.map(|(_, cause)| *cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Kept, Piece, Segment};
    use crate::request::Owner;

    const ALICE: Holder = Holder::bare(Owner::Private([1; 32]));
    const BOB: Holder = Holder::bare(Owner::Private([2; 32]));

    fn tokens(text: &str) -> Vec<Token> {
        text.bytes().map(|byte| Token(byte.into())).collect()
    }

    #[test]
    fn a_miss_is_explained_by_the_file_that_would_have_had_it() {
        let header = |holder, text: &str, start| {
            let piece = Piece { n_tokens: text.len() - start, bytes: Box::default() };
            Segment::new(holder, Kept::Private, false, &tokens(text), start, vec![piece]).header
        };
        let mut refused = Refused::default();
        refused.remember(header(Holder::HOUSE, "house", 0), MissCause::KvType);
        refused.remember(header(ALICE, "house of alice", 5), MissCause::RestoreFailed);
        let find = |holder, text: &str, n_hit| refused.find(holder, &tokens(text), n_hit);
        assert_eq!(find(BOB, "house of bob", 0), Some(MissCause::KvType));
        assert_eq!(find(BOB, "house of alice", 5), None, "another's file explains nothing");
        assert_eq!(find(ALICE, "house of alice!", 5), Some(MissCause::RestoreFailed));
        assert_eq!(find(ALICE, "house of alice!", 14), None, "the file ended before");
        assert_eq!(find(ALICE, "house of a", 9), Some(MissCause::RestoreFailed));
        assert_eq!(find(ALICE, "house of bob", 9), None);
        assert_eq!(find(ALICE, "mouse of alice", 6), None, "other tokens stand before it");
    }
}
