//! Defines `LlamaVocab`: the model's vocabulary, shared by every thread.
//!
//! A *piece* is the text of one token. A *control token* structures a prompt and is no text; users may not write it.

use std::sync::Arc;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;

use crate::engine::{Special, Vocab};
use crate::request::Token;

pub(super) struct LlamaVocab {
    model: Arc<LlamaModel>,
    bos: Option<Token>,
    control_tokens: Vec<(Token, String)>,
    n_tokens: i32,
}

impl LlamaVocab {
    pub(super) fn new(model: Arc<LlamaModel>) -> LlamaVocab {
        let vocab = model.vocab();
        let n_tokens = vocab.n_tokens();
        // A spelling that is not UTF-8 cannot be typed, so it needs no guard.
        let control_tokens = vocab
            .tokens()
            .filter(|token| vocab.attr(*token).intersects(LlamaTokenAttr::Control | LlamaTokenAttr::Unknown))
            .filter_map(|token| Some((Token(token.0), vocab.text(token)?.to_str().ok()?.to_owned())))
            .filter(|(_, text)| !text.is_empty())
            .collect();
        let bos = vocab.bos();
        let bos = (vocab.should_add_bos() && bos.0 >= 0).then_some(Token(bos.0));
        LlamaVocab { bos, control_tokens, n_tokens, model }
    }

    /// The spelling of BOS and EOS as templates write them, empty where the vocabulary has none.
    pub(super) fn template_tokens(&self) -> (String, String) {
        let vocab = self.model.vocab();
        let spelling = |token: LlamaToken| match self.knows(Token(token.0)) {
            true => String::from_utf8_lossy(&vocab.token_to_piece(token, true, None)).into_owned(),
            false => String::new(),
        };
        (spelling(vocab.bos()), spelling(vocab.eos()))
    }

    pub(super) fn model(&self) -> &LlamaModel {
        &self.model
    }

    pub(super) fn knows(&self, token: Token) -> bool {
        (0..self.n_tokens).contains(&token.0)
    }
}

impl Vocab for LlamaVocab {
    fn n_tokens(&self) -> usize {
        self.n_tokens as usize
    }

    fn tokenize(&self, text: &str, special: Special) -> Vec<Token> {
        let tokens = self.model.vocab().tokenize(text.as_bytes(), false, special == Special::Parsed);
        tokens.into_iter().map(|token| Token(token.0)).collect()
    }

    fn piece(&self, token: Token, out: &mut Vec<u8>) {
        if self.knows(token) {
            out.reserve(16);
            self.model.vocab().token_to_piece_into(LlamaToken(token.0), out, false, None);
        }
    }

    fn is_end(&self, token: Token) -> bool {
        self.knows(token) && self.model.vocab().is_eog(LlamaToken(token.0))
    }

    fn bos(&self) -> Option<Token> {
        self.bos
    }

    fn control_tokens(&self) -> &[(Token, String)] {
        &self.control_tokens
    }
}
