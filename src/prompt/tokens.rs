//! From rendered text to tokens, most of which are remembered.
//!
//! A *stretch* is the text between two control tokens. No token reaches over a control token, so a stretch has the same
//! tokens wherever it stands, and a text seen before costs a look into the memo. Vocabularies for which this does not
//! hold (some strip white space beside control tokens) are found out at the start and served without the memo.

use std::borrow::Cow;
use std::iter;
use std::sync::Arc;

use super::echoes::{Calls, Echoes, Spoken};
use super::memo::Memo;
use super::sentinel::Controls;
use crate::engine::{Special, Vocab};
use crate::request::{Owner, Token};

/// Bytes of stretches and their tokens: about 200 conversations of 5,000 tokens with nothing in common.
const MEMO_BYTES_MAX: usize = 16 << 20;
/// Bytes of one entry beside text and tokens: two pointers with lengths, the hash table's share.
const ENTRY_BYTES: usize = 96;
/// Control tokens tried at the start. What templates write stands among the first ones; a vocabulary may have
/// thousands of unused ones behind them, and trying those would take seconds.
const N_TRIED_MAX: usize = 512;

pub(super) struct Tokeniser {
    vocab: Arc<dyn Vocab>,
    controls: Arc<Controls>,
    /// Whether the tokens of stretches, one by one, are those of the whole.
    splits: bool,
    stretches: Memo<Box<str>, Box<[Token]>>,
    echoes: Echoes,
}

impl Tokeniser {
    pub(super) fn new(vocab: Arc<dyn Vocab>, controls: Arc<Controls>) -> Tokeniser {
        let stretches = Memo::new(MEMO_BYTES_MAX);
        let mut tokeniser = Tokeniser { vocab, controls, splits: true, stretches, echoes: Echoes::new() };
        let trial = trial(&tokeniser.controls);
        tokeniser.splits = tokeniser.by_stretch(&trial, Owner::Public, &Calls::default())
            == tokeniser.vocab.tokenize(&trial, Special::Parsed);
        if !tokeniser.splits {
            tracing::info!("this vocabulary's tokens depend on what stands beside control tokens: none are remembered");
        }
        tokeniser
    }

    /// The tokens of a rendered prompt of `owner`: control tokens where they are spelled, text where a sentinel stands, what
    /// the model said in the tokens it was said in, and one BOS at the front if the model wants it. `calls`: those
    /// in its history.
    pub(super) fn tokenise(&mut self, text: &str, owner: Owner, calls: &Calls) -> Vec<Token> {
        let mut tokens = if self.splits { self.by_stretch(text, owner, calls) } else { self.whole(text) };
        if let Some(bos) = self.vocab.bos() {
            let n_bos = tokens.iter().take_while(|&&token| token == bos).count();
            drop(tokens.splice(..n_bos, [bos]));
        }
        tokens
    }

    /// What stands behind the last control token of a rendered prompt.
    pub(super) fn opening<'a>(&self, text: &'a str) -> &'a str {
        let end = self.controls.find(text).last().map_or(0, |(range, _)| range.end);
        &text[end..]
    }

    /// How many of `tokens`, the whole of `text`, stand in front of each of `bytes`, which rise. A token that reaches over
    /// such a place counts as in front of it.
    pub(super) fn offsets(&self, text: &str, tokens: &[Token], bytes: &[usize]) -> Vec<usize> {
        let mut offsets = Vec::with_capacity(bytes.len());
        let bos = self.vocab.bos();
        let (mut start, mut start_idx) = (0, usize::from(bos.is_some()));
        let mut piece = Vec::new();
        let ends = self.controls.find(text).map(|(range, control)| (range, Some(control)));
        for (range, control) in ends.chain(iter::once((text.len()..text.len(), None))) {
            // However often the template wrote it, one is left, and it is counted.
            if control.is_some() && control == bos && text[..range.start].trim().is_empty() {
                start = range.end;
                continue;
            }
            let stretch = &tokens[start_idx.min(tokens.len())..];
            let n_stretch = control.and_then(|control| stretch.iter().position(|token| *token == control));
            let n_stretch = n_stretch.unwrap_or(stretch.len());
            let (mut n_bytes, mut n_passed) = (0, 0);
            while let Some(&byte) = bytes.get(offsets.len()).filter(|byte| **byte <= range.start) {
                if byte >= range.start {
                    n_passed = n_stretch;
                }
                let end = (start..=byte.max(start)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(start);
                let n_wanted = self.controls.restore(&text[start..end]).len();
                while n_passed < n_stretch && n_bytes < n_wanted {
                    piece.clear();
                    self.vocab.piece(stretch[n_passed], &mut piece);
                    n_bytes += piece.len();
                    n_passed += 1;
                }
                offsets.push(start_idx + n_passed);
            }
            start_idx += n_stretch + usize::from(control.is_some());
            start = range.end;
        }
        offsets.resize(bytes.len(), tokens.len());
        offsets
    }

    /// Keeps the tokens of an answer. Without stretches nothing can be kept.
    pub(super) fn remember(&mut self, spoken: &Spoken) {
        if self.splits {
            let opening = self.vocab.tokenize(&self.controls.restore(&spoken.opening), Special::Text);
            self.echoes.keep(self.vocab.as_ref(), spoken, &opening);
        }
    }

    /// Forgets texts: what `whose` was told, and all remembered stretches, of which nobody knows whose they are; those
    /// are only tokenised again. `None`: what anybody was told.
    pub(super) fn forget(&mut self, whose: Option<Owner>) {
        self.echoes.forget(whose);
        self.stretches = Memo::new(MEMO_BYTES_MAX);
    }

    fn by_stretch(&mut self, text: &str, owner: Owner, calls: &Calls) -> Vec<Token> {
        let Tokeniser { vocab, controls, stretches, echoes, .. } = self;
        let mut append = |mark, stretch: &str, tokens: &mut Vec<Token>| match echoes.get(owner, mark, stretch, calls) {
            Some(said) => tokens.extend_from_slice(said),
            None => append_stretch(stretch, vocab.as_ref(), controls, stretches, tokens),
        };
        // English and JSON have three to four bytes a token.
        let mut tokens = Vec::with_capacity(text.len() / 3);
        let (mut start, mut mark) = (0, None);
        for (range, control) in controls.find(text) {
            append(mark, &text[start..range.start], &mut tokens);
            tokens.push(control);
            (start, mark) = (range.end, Some(control));
        }
        append(mark, &text[start..], &mut tokens);
        tokens
    }

    /// Without the memo: all text at once, but for stretches with sentinels, whose spellings must stay text.
    fn whole(&self, text: &str) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut parsed_from = 0;
        let mut start = 0;
        let ends = self.controls.find(text).map(|(range, _)| range).chain(iter::once(text.len()..text.len()));
        for range in ends {
            let stretch = &text[start..range.start];
            if let Cow::Owned(restored) = self.controls.restore(stretch) {
                tokens.extend(self.vocab.tokenize(&text[parsed_from..start], Special::Parsed));
                tokens.extend(self.vocab.tokenize(&restored, Special::Text));
                parsed_from = range.start;
            }
            start = range.end;
        }
        tokens.extend(self.vocab.tokenize(&text[parsed_from..], Special::Parsed));
        tokens
    }
}

fn append_stretch(
    stretch: &str,
    vocab: &dyn Vocab,
    controls: &Controls,
    stretches: &mut Memo<Box<str>, Box<[Token]>>,
    tokens: &mut Vec<Token>,
) {
    if stretch.is_empty() {
        return;
    }
    if let Some(known) = stretches.get(stretch) {
        tokens.extend_from_slice(known);
        return;
    }
    let made = vocab.tokenize(&controls.restore(stretch), Special::Text).into_boxed_slice();
    tokens.extend_from_slice(&made);
    let n_bytes = stretch.len() + std::mem::size_of_val(&*made) + ENTRY_BYTES;
    stretches.insert(stretch.into(), made, n_bytes);
}

/// A text with control tokens beside letters, white space, each other, and the text's ends.
fn trial(controls: &Controls) -> String {
    let mut text = String::from(" start");
    for (_, spelling) in controls.all().take(N_TRIED_MAX) {
        for part in ["a", spelling, "b \n", spelling, " c\u{e9}", spelling, spelling, "\n\n", spelling, "  "] {
            text.push_str(part);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{BOS, Bytes};
    use super::*;

    fn tokeniser(vocab: Bytes) -> Tokeniser {
        let controls = Arc::new(Controls::of(&vocab).unwrap());
        Tokeniser::new(Arc::new(vocab), controls)
    }

    fn rendered() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            prop::sample::select(vec![
                "<|im_start|>",
                "<|im_end|>",
                "<|end",
                "<|end|>",
                "<s>",
                "</s>",
                "<",
                "|>",
                "user\n",
                "\n",
            ])
            .prop_map(str::to_string),
            "\\PC{0,8}",
        ];
        // Characters that are sentinels of the stand-in's twelve control tokens mean something else to each side.
        prop::collection::vec(part, 0..12)
            .prop_map(|parts| parts.concat().replace(|c| ('\u{100000}'..='\u{10000B}').contains(&c), "x"))
    }

    proptest! {
        #[test]
        fn stretches_together_have_the_tokens_of_the_whole(texts in prop::collection::vec(rendered(), 1..4)) {
            let mut tokeniser = tokeniser(Bytes::new());
            prop_assert!(tokeniser.splits);
            for text in texts.iter().chain(&texts) {
                prop_assert_eq!(tokeniser.tokenise(text, Owner::Public, &Calls::default()), Bytes::new().tokenize(text, Special::Parsed));
            }
        }

        #[test]
        fn a_vocabulary_that_strips_gets_its_own_tokens(text in rendered()) {
            let mut tokeniser = tokeniser(Bytes::stripping());
            prop_assert!(!tokeniser.splits);
            prop_assert_eq!(tokeniser.tokenise(&text, Owner::Public, &Calls::default()), Bytes::stripping().tokenize(&text, Special::Parsed));
        }
    }

    #[test]
    fn a_sentinel_becomes_its_spelling_in_letters() {
        for vocab in [Bytes::new(), Bytes::stripping()] {
            let mut tokeniser = tokeniser(vocab);
            let mut typed = "say <|im_end|> <|im_start|>".to_string();
            assert!(tokeniser.controls.guard(&mut typed).unwrap());
            let tokens =
                tokeniser.tokenise(&format!("<|im_start|>{typed}<|im_end|>"), Owner::Public, &Calls::default());
            assert_eq!(Bytes::new().decode(&tokens), "⟦<|im_start|>⟧say <|im_end|> <|im_start|>⟦<|im_end|>⟧");
        }
    }

    #[test]
    fn one_bos_is_left_of_none_one_and_two() {
        let mut tokeniser = tokeniser(Bytes::with_bos());
        let tokens = tokeniser.tokenise("<s>text", Owner::Public, &Calls::default());
        assert_eq!(tokens[0], BOS);
        assert_eq!(tokeniser.tokenise("text", Owner::Public, &Calls::default()), tokens);
        assert_eq!(tokeniser.tokenise("<s><s>text", Owner::Public, &Calls::default()), tokens);
        assert_eq!(tokeniser.tokenise("", Owner::Public, &Calls::default()), [BOS]);
    }
}
