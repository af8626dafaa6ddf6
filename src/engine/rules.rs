//! What an answer must obey, and how its text is read. Both come from the chat template, for the tools and the shape asked for.
//!
//! *Rules* bind the sampler: a grammar, an end of thinking. A *reader* parts an answer's text into what was thought, said and
//! called. Nothing here samples or parses: each engine does, in its own way.

use std::fmt;

use super::EngineError;
use crate::request::{Token, ToolCall};

/// What the sampler of one answer obeys. The default binds nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AnswerRules {
    pub grammar: Option<Grammar>,
    /// Control tokens whose spelling belongs to the answer's text, as `<tool_call>` does: the reader needs to see them.
    pub spelled: Vec<Token>,
    /// Texts that end the answer, besides the client's own.
    pub stops: Vec<String>,
    pub thinking: Option<ThinkingRules>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grammar {
    /// In the engine's own notation: GBNF on llama.cpp.
    pub text: String,
    pub origin: GrammarOrigin,
    /// It binds from one of the triggers on, not from the beginning.
    pub is_lazy: bool,
    pub triggers: Vec<Trigger>,
    /// What the prompt already holds of the answer: a grammar that binds from the beginning begins with it.
    pub opening: String,
}

impl Grammar {
    /// One that binds from the beginning, of which the prompt holds nothing yet.
    pub fn whole(text: impl Into<String>, origin: GrammarOrigin) -> Grammar {
        Grammar { text: text.into(), origin, is_lazy: false, triggers: Vec::new(), opening: String::new() }
    }
}

/// Who wrote a grammar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GrammarOrigin {
    /// The client, as a grammar: it does not know of the opening.
    Client,
    /// It was built from a schema.
    Schema,
    /// It was built from the tools.
    Tools,
}

/// What sets a lazy grammar off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    Token(Token),
    /// Wherever it stands in the answer.
    Word(String),
    /// A regular expression; the grammar begins at its first group that matched something, else at the match.
    Pattern(String),
}

/// How thinking begins and ends, and when it must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinkingRules {
    pub start: Vec<Token>,
    /// The first is the one that is written when the budget is spent.
    pub ends: Vec<Vec<Token>>,
    /// Tokens that may be thought; `None`: as many as the model likes.
    pub budget: Option<usize>,
    /// What the prompt already holds of the answer: it may have begun thinking.
    pub opening: String,
}

impl ThinkingRules {
    /// How many of the tokens of an answer that thinks are its thinking, with the mark that ends it.
    pub fn n_thinking(&self, generated: &[Token]) -> usize {
        let ends_at = |end: &Vec<Token>| {
            let at = generated.windows(end.len()).position(|tokens| tokens == end)?;
            Some(at + end.len())
        };
        self.ends.iter().filter(|end| !end.is_empty()).filter_map(ends_at).min().unwrap_or(generated.len())
    }
}

/// An answer's text, parted.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct AnswerParts {
    pub reasoning: String,
    pub content: String,
    /// Ids only where the model wrote one. Of an unfinished answer the last call's arguments may be the beginning of a JSON text.
    pub calls: Vec<ToolCall>,
}

/// Reads answers that were made under rules. To be shared between the answers of equal wishes.
pub trait AnswerReader: Send + Sync + fmt::Debug {
    /// The parts of `text`: of the whole answer if `is_whole`, else of its beginning. Of a beginning only what every longer
    /// text keeps is told, so that each part only grows.
    fn read(&self, text: &str, is_whole: bool) -> Result<AnswerParts, EngineError>;
}

/// Takes an answer as it is: nothing was thought, nothing called.
#[derive(Debug)]
pub struct PlainReader;

impl AnswerReader for PlainReader {
    fn read(&self, text: &str, _: bool) -> Result<AnswerParts, EngineError> {
        Ok(AnswerParts { content: text.to_owned(), ..AnswerParts::default() })
    }
}
