//! Echoes: a client sends back what the model said, and it keeps the tokens it was said in.
//!
//! A text has many spellings in tokens, and a model does not always choose the one that a tokeniser would. Tokenised anew, an
//! answer in the history would differ from what the cells hold at the first such place, and everything behind it would be
//! computed again: 34 s in <https://github.com/ggml-org/llama.cpp/issues/11970>. So the ids of an answer are kept under the
//! stretch of text that will stand in the history: what the template wrote behind the last control token (`assistant\n`), then
//! the answer. An echo belongs to the owner it was said to.

use std::collections::HashSet;

use super::live::RecordId;
use super::memo::Memo;
use crate::engine::Vocab;
use crate::request::{Owner, Token};

/// Bytes of kept ids and their keys: some 10,000 answers of 100 tokens.
const BYTES_MAX: usize = 8 << 20;
/// Bytes of one entry beside its ids: key, owner, pointers, the hash table's share.
const ENTRY_BYTES: usize = 136;
/// Templates have one opening, or two with thinking; more than this would be none that comes again.
const N_OPENINGS_MAX: usize = 16;

pub(super) struct Echoes {
    kept: Memo<[u8; 32], Echo>,
    /// What stood between the last control token and an answer: only a stretch that begins like this is looked up.
    openings: HashSet<Box<str>>,
}

struct Echo {
    owner: Owner,
    ids: Box<[Token]>,
}

/// An answer as it was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spoken {
    pub owner: Owner,
    /// `Planned::opening` of the request it answered.
    pub opening: String,
    /// `Planned::record` of the request it answered.
    pub record: Option<RecordId>,
    /// The text that was sent.
    pub text: String,
    /// All sampled tokens; those behind the text (a stop text's) are left out here.
    pub tokens: Vec<Token>,
}

impl Echoes {
    pub(super) fn new() -> Echoes {
        Echoes { kept: Memo::new(BYTES_MAX), openings: HashSet::new() }
    }

    /// Keeps the ids of `spoken`, as it was sent and as a client that trims its end will echo it. `opening`: the tokens of
    /// `spoken.opening`.
    pub(super) fn keep(&mut self, vocab: &dyn Vocab, spoken: &Spoken, opening: &[Token]) {
        if !self.openings.contains(spoken.opening.as_str()) {
            if self.openings.len() == N_OPENINGS_MAX {
                return;
            }
            self.openings.insert(spoken.opening.as_str().into());
        }
        let trimmed = spoken.text.trim_end();
        for text in [spoken.text.as_str(), trimmed] {
            let Some(n) = n_tokens_of(vocab, &spoken.tokens, text).filter(|&n| n > 0) else { continue };
            let ids: Box<[Token]> = opening.iter().chain(&spoken.tokens[..n]).copied().collect();
            let n_bytes = std::mem::size_of_val(&*ids) + ENTRY_BYTES;
            let echo = Echo { owner: spoken.owner, ids };
            self.kept.insert(key(spoken.owner, &spoken.opening, text), echo, n_bytes);
        }
    }

    /// The ids of a stretch that `owner` was once told.
    pub(super) fn get(&mut self, owner: Owner, stretch: &str) -> Option<&[Token]> {
        let opening = self.openings.iter().find(|opening| stretch.starts_with(&***opening))?;
        let key = key(owner, opening, &stretch[opening.len()..]);
        self.kept.get(&key).map(|echo| &*echo.ids)
    }

    /// Forgets what `whose` was told; `None`: what anybody was.
    pub(super) fn forget(&mut self, whose: Option<Owner>) {
        self.kept.retain(|echo| whose.is_some_and(|whose| whose != echo.owner));
    }
}

/// How many of `tokens` spell `text`; `None` if a token reaches over its end.
fn n_tokens_of(vocab: &dyn Vocab, tokens: &[Token], text: &str) -> Option<usize> {
    let mut spelled = Vec::with_capacity(text.len() + 16);
    let mut n = 0;
    while spelled.len() < text.len() {
        vocab.piece(*tokens.get(n)?, &mut spelled);
        n += 1;
    }
    (spelled == text.as_bytes()).then_some(n)
}

fn key(owner: Owner, opening: &str, text: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    if let Owner::Private(id) = owner {
        hasher.update(&id);
    }
    hasher.update(opening.as_bytes());
    hasher.update(text.as_bytes());
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Special;

    const ALICE: Owner = Owner::Private([1; 32]);
    const BOB: Owner = Owner::Private([2; 32]);

    /// Bytes, and one token for "ab".
    struct Pairs;

    const AB: Token = Token(256);

    impl Vocab for Pairs {
        fn n_tokens(&self) -> usize {
            257
        }

        fn tokenize(&self, text: &str, _: Special) -> Vec<Token> {
            text.bytes().map(|byte| Token(byte.into())).collect()
        }

        fn piece(&self, token: Token, out: &mut Vec<u8>) {
            match u8::try_from(token.0) {
                Ok(byte) => out.push(byte),
                Err(_) => out.extend(b"ab"),
            }
        }

        fn is_end(&self, _: Token) -> bool {
            false
        }

        fn bos(&self) -> Option<Token> {
            None
        }

        fn control_tokens(&self) -> &[(Token, String)] {
            &[]
        }
    }

    fn spoken(text: &str, tokens: &[Token]) -> Spoken {
        Spoken { owner: ALICE, opening: "assistant\n".into(), record: None, text: text.into(), tokens: tokens.to_vec() }
    }

    fn byte(byte: u8) -> Token {
        Token(byte.into())
    }

    #[test]
    fn an_answer_keeps_the_tokens_it_was_said_in_for_its_owner() {
        let mut echoes = Echoes::new();
        let opening = Pairs.tokenize("assistant\n", Special::Text);
        echoes.keep(&Pairs, &spoken("cab", &[byte(b'c'), AB]), &opening);
        let expected: Vec<Token> = opening.iter().copied().chain([byte(b'c'), AB]).collect();
        assert_eq!(echoes.get(ALICE, "assistant\ncab"), Some(&*expected));
        assert_eq!(echoes.get(BOB, "assistant\ncab"), None);
        assert_eq!(echoes.get(ALICE, "user\ncab"), None);
        assert_eq!(echoes.get(ALICE, "assistant\nca"), None);
        echoes.forget(Some(BOB));
        assert!(echoes.get(ALICE, "assistant\ncab").is_some());
        echoes.forget(Some(ALICE));
        assert_eq!(echoes.get(ALICE, "assistant\ncab"), None);
    }

    #[test]
    fn a_trimmed_end_and_a_stop_text_leave_the_tokens_before_them() {
        let mut echoes = Echoes::new();
        echoes.keep(&Pairs, &spoken("ab \n", &[AB, byte(b' '), byte(b'\n'), AB]), &[]);
        assert_eq!(echoes.get(ALICE, "assistant\nab"), Some(&[AB][..]));
        assert_eq!(echoes.get(ALICE, "assistant\nab \n"), Some(&[AB, byte(b' '), byte(b'\n')][..]));
        // The stop text "b" began inside a token: nothing spells "xa" alone.
        echoes.keep(&Pairs, &spoken("xa", &[byte(b'x'), AB]), &[]);
        assert_eq!(echoes.get(ALICE, "assistant\nxa"), None);
    }
}
