//! Defines `Bound`: what a grammar still allows of one answer.
//!
//! The *grammar* is llama.cpp's notation, read by its parser (`notation`); what it allows is found here (`walk`), in bounded time
//! whatever the grammar. A grammar that waits for a *trigger*, a word or a token, binds from its first letter on. What must be
//! sampled is not decided here.

mod notation;
mod pieces;
mod walk;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use self::notation::{Pattern, Rules};
pub(super) use self::pieces::Pieces;
use self::walk::{Place, TooWide, Walk};
use super::vocab::LlamaVocab;
use crate::engine::{EngineError, Grammar, GrammarOrigin, Special, Trigger, Vocab};
use crate::request::Token;

/// Grammars that are kept parsed: a household has one for each set of tools, and some for schemas.
const N_PARSED: usize = 16;

/// Bytes of an answer's end that are searched for a trigger: far more than any has, and searched in microseconds.
const N_HEARD: usize = 512;

/// What the grammars of one vocabulary share.
#[derive(Default)]
pub(super) struct Grammars {
    pieces: OnceLock<Pieces>,
    parsed: Mutex<VecDeque<(blake3::Hash, Arc<Rules>)>>,
}

impl Grammars {
    fn parse(&self, grammar: &Grammar, vocab: &LlamaVocab) -> Result<Arc<Rules>, EngineError> {
        let is_clients = grammar.origin == GrammarOrigin::Client;
        let hash = blake3::hash(grammar.text.as_bytes());
        let known = |parsed: &VecDeque<(blake3::Hash, Arc<Rules>)>| {
            parsed.iter().find(|(known, _)| *known == hash).map(|(_, rules)| Arc::clone(rules))
        };
        if let Some(rules) = known(&self.parsed.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(rules);
        }
        let rules = Arc::new(Rules::parse(&grammar.text, is_clients, vocab).map_err(EngineError::Sampling)?);
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        if known(&parsed).is_none() {
            parsed.truncate(N_PARSED - 1);
            parsed.push_front((hash, Arc::clone(&rules)));
        }
        Ok(rules)
    }
}

pub(super) struct Bound {
    walk: Walk,
    place: Place,
    /// `None`: it binds.
    waiting: Option<Waiting>,
}

/// For what a grammar waits.
struct Waiting {
    tokens: Vec<Token>,
    words: Vec<Vec<u8>>,
    patterns: Vec<Pattern>,
    /// Those that match from the answer's beginning on.
    first_patterns: Vec<Pattern>,
    heard: Heard,
}

/// The end of what was said: a trigger may have begun there.
#[derive(Clone, Default)]
struct Heard {
    text: Vec<u8>,
    /// More was said before it.
    is_cut: bool,
}

/// What a token would do.
enum Next {
    /// It is no trigger; heard so far.
    Waits(Heard),
    Binds(Place),
}

impl Bound {
    /// At the beginning of the answer; where the grammar knows of it, past what the prompt holds of it already.
    pub(super) fn open(vocab: &LlamaVocab, grammar: &Grammar) -> Result<Bound, EngineError> {
        let rules = vocab.grammars().parse(grammar, vocab)?;
        let (walk, place) = Walk::start(rules).map_err(too_wide)?;
        let mut bound = Bound { walk, place, waiting: None };
        if grammar.is_lazy {
            bound.waiting = Some(Waiting::of(&grammar.triggers)?);
        } else if grammar.origin != GrammarOrigin::Client {
            let mut tokens = vocab.tokenize(&grammar.opening, Special::Parsed);
            // Some tokenisers put a blank in front of a first control token.
            let starts_blank = |text: &[u8]| text.first().is_some_and(u8::is_ascii_whitespace);
            let mut first = Vec::new();
            tokens.iter().take(1).for_each(|&token| vocab.piece(token, &mut first));
            if starts_blank(&first) && !starts_blank(grammar.opening.as_bytes()) {
                tokens.remove(0);
            }
            for token in tokens {
                if !bound.allows(token, vocab)? {
                    return Err(refused("the grammar does not begin like the answer's opening".into()));
                }
                bound.accept(token, vocab)?;
            }
        }
        Ok(bound)
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Whether `token` may come. One that would set the grammar off and break it at once may not.
    pub(super) fn allows(&mut self, token: Token, vocab: &LlamaVocab) -> Result<bool, EngineError> {
        Ok(!matches!(self.next(token, vocab)?, Next::Binds(place) if place.is_dead()))
    }

    /// Sets `allowed` of each token that may come. Not to be asked while the grammar waits.
    pub(super) fn allow(&mut self, vocab: &LlamaVocab, allowed: &mut Vec<bool>) -> Result<(), EngineError> {
        allowed.resize(vocab.n_tokens(), false);
        let pieces = vocab.grammars().pieces.get_or_init(|| vocab.pieces());
        self.walk.allow(self.place, pieces, allowed).map_err(too_wide)
    }

    /// `token` was said.
    pub(super) fn accept(&mut self, token: Token, vocab: &LlamaVocab) -> Result<(), EngineError> {
        match (self.next(token, vocab)?, &mut self.waiting) {
            (Next::Waits(heard), Some(waiting)) => waiting.heard = heard,
            (Next::Binds(place), _) if place.is_dead() => {
                return Err(refused(format!("the grammar does not go on with token {}", token.0)));
            }
            (Next::Binds(place), waiting) => {
                *waiting = None;
                self.place = self.walk.tidy(place).map_err(too_wide)?;
            }
            (Next::Waits(_), None) => {}
        }
        Ok(())
    }

    fn next(&mut self, token: Token, vocab: &LlamaVocab) -> Result<Next, EngineError> {
        let is_end = vocab.is_end(token);
        let mut text = Vec::new();
        vocab.spelling(token, &mut text);
        let place = match &self.waiting {
            None if is_end => match self.walk.can_end(self.place) {
                true => Ok(self.place),
                false => Ok(Place::DEAD),
            },
            None => self.walk.token(self.place, token, &text),
            Some(waiting) if waiting.tokens.contains(&token) => self.walk.token(self.place, token, &text),
            Some(waiting) => {
                let mut heard = waiting.heard.clone();
                heard.text.extend(&text);
                match waiting.find(&heard) {
                    Some(start) => self.walk.text(self.place, &heard.text[start..]),
                    None => {
                        let n_more = heard.text.len().saturating_sub(N_HEARD);
                        heard.is_cut |= n_more > 0;
                        heard.text.drain(..n_more);
                        return Ok(Next::Waits(heard));
                    }
                }
            }
        };
        place.map(Next::Binds).map_err(too_wide)
    }
}

impl Waiting {
    fn of(triggers: &[Trigger]) -> Result<Waiting, EngineError> {
        let (mut tokens, mut words) = (Vec::new(), Vec::new());
        let (mut patterns, mut first_patterns) = (Vec::new(), Vec::new());
        for trigger in triggers {
            match trigger {
                Trigger::Token(token) => tokens.push(*token),
                Trigger::Word(word) => words.push(word.clone().into_bytes()),
                Trigger::Pattern(pattern) => {
                    let made = Pattern::new(pattern).map_err(refused)?;
                    if pattern.starts_with('^') { first_patterns.push(made) } else { patterns.push(made) }
                }
            }
        }
        Ok(Waiting { tokens, words, patterns, first_patterns, heard: Heard::default() })
    }

    /// Where the grammar begins.
    fn find(&self, heard: &Heard) -> Option<usize> {
        let find_word = |word: &Vec<u8>| heard.text.windows(word.len().max(1)).position(|window| window == word);
        let words = self.words.iter().filter_map(find_word);
        let first_patterns = self.first_patterns.iter().filter(|_| !heard.is_cut);
        let patterns = self.patterns.iter().chain(first_patterns).filter_map(|pattern| pattern.find(&heard.text));
        words.chain(patterns).min()
    }
}

fn too_wide(TooWide: TooWide) -> EngineError {
    refused("the grammar leaves too many ways open here: fewer optional parts beside each other would do".into())
}

fn refused(reason: String) -> EngineError {
    EngineError::Sampling(reason)
}

#[cfg(test)]
mod tests;
