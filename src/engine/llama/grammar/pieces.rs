//! Defines `Pieces`: the texts of a vocabulary's tokens in order, so that those that begin alike are walked through once.

use crate::request::Token;

/// Those that may be said: ends of answers and tokens without a text are not among them.
#[derive(Debug)]
pub(in super::super) struct Pieces {
    bytes: Vec<u8>,
    sorted: Vec<Piece>,
    pub(super) ends: Vec<Token>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    token: Token,
    start: u32,
    n_bytes: u32,
    /// Bytes that the piece before begins with, too.
    n_shared: u32,
}

impl Pieces {
    /// `piece`: appends a token's text, of control tokens their spelling.
    pub(in super::super) fn new(
        n_tokens: i32,
        piece: impl Fn(Token, &mut Vec<u8>),
        is_end: impl Fn(Token) -> bool,
    ) -> Pieces {
        let (mut bytes, mut sorted, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for token in (0..n_tokens).map(Token) {
            let start = bytes.len();
            if is_end(token) {
                ends.push(token);
                continue;
            }
            piece(token, &mut bytes);
            // A text that begins with NUL is none to llama.cpp.
            if bytes.get(start).is_none_or(|first| *first == 0) {
                bytes.truncate(start);
                continue;
            }
            sorted.push(Piece { token, start: start as u32, n_bytes: (bytes.len() - start) as u32, n_shared: 0 });
        }
        let text = |piece: &Piece| &bytes[piece.start as usize..][..piece.n_bytes as usize];
        sorted.sort_unstable_by(|a, b| text(a).cmp(text(b)));
        for at in 1..sorted.len() {
            let (before, this) = (text(&sorted[at - 1]), text(&sorted[at]));
            sorted[at].n_shared = before.iter().zip(this).take_while(|(a, b)| a == b).count() as u32;
        }
        Pieces { bytes, sorted, ends }
    }

    /// Token, text, and how many bytes the text before begins with, too.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Token, &[u8], usize)> {
        let entry = |piece: &Piece| {
            let text = &self.bytes[piece.start as usize..][..piece.n_bytes as usize];
            (piece.token, text, piece.n_shared as usize)
        };
        self.sorted.iter().map(entry)
    }
}
