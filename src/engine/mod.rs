//! The engine computes tokens: three small traits, each with two real implementations, `llama` and `simulated`.
//!
//! `Engine` owns the context and its K/V cells and lives on the scheduler's thread; `Vocab` and `ChatTemplate` belong to
//! the weights, are shared, and serve the planner. `Model` is what was loaded and gives all three.
//! A *cell* holds K and V of one token position; a *sequence* is the set of cells that carry its id.

pub mod facts;
#[cfg(feature = "llama")]
pub mod llama;
pub(crate) mod logprobs;
pub mod rules;
pub mod simulated;
pub mod thinking;

use std::ops::Range;
use std::sync::Arc;

pub use facts::{Gpu, GpuLayers, KvType, ModelFacts};
pub use rules::{AnswerParts, AnswerReader, AnswerRules, Grammar, GrammarOrigin, PlainReader, ThinkingRules, Trigger};

use crate::request::{AdapterSet, Message, Sampling, Token, Wanted};

/// A sequence's number inside the context: 0..n_seq_max.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SeqId(pub u16);

/// Loaded weights. Cheap to share; opening it makes the one context.
pub trait Model: Send + Sync + 'static {
    type Engine<'a>: Engine
    where
        Self: 'a;

    fn facts(&self) -> &ModelFacts;
    /// How the context of this model can be shared and cut.
    fn memory(&self) -> Memory {
        self.memory_class().memory()
    }
    /// What that rests on, for reports.
    fn memory_class(&self) -> MemoryClass;
    /// Ids of the context that `n_seq_max` sequences need: an engine keeps some to itself. At most 256 in all.
    fn n_ids(&self, n_seq_max: usize) -> usize;
    /// Adapters that were loaded with the weights; their numbers are 0 to it.
    fn n_adapters(&self) -> usize;
    fn vocab(&self) -> Arc<dyn Vocab>;
    fn template(&self) -> Arc<dyn ChatTemplate>;

    /// Allocates the context. To be called on the thread that will use the engine.
    fn open(&self, options: &ContextOptions) -> Result<Self::Engine<'_>, EngineError>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextOptions {
    /// K/V cells, shared by all sequences.
    pub n_cells: usize,
    /// Sequences, at least 1; at most as many as 256 ids are enough for, see `Model::n_ids`.
    pub n_seq_max: usize,
    /// Upper number of tokens in one `decode`.
    pub n_batch: usize,
    pub kv_type: KvType,
    pub threads: Threads,
}

/// CPU threads of the engine, each at least 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Threads {
    /// For a step of one token, which reads all weights once and gains little from the last core.
    pub decode: usize,
    /// For every larger step, which computes.
    pub prefill: usize,
}

impl Threads {
    pub fn same(n: usize) -> Threads {
        Threads { decode: n, prefill: n }
    }
}

/// How a model's memory can be shared and cut.
///
/// Which models are rewindable is a list that tests have proved. On others llama.cpp "succeeds" at cuts and gives wrong logits:
/// off by 11 with a sliding window, by 10 on a hybrid (measured).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Full attention: share and cut anywhere.
    Rewindable,
    /// Not proved to be rewindable: whole sequences only.
    Opaque,
}

/// What kind of memory the weights have, and so what reuse costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryClass {
    /// Full attention.
    Rewindable,
    /// Layers that see a window only; shared and cut anywhere all the same, for a second owner of each cell.
    Guarded,
    /// A part of the state is one value that goes forward only: cut where that was saved.
    Checkpointed,
    /// Not proved to be one of these: reused as whole sequences, copied.
    Opaque,
}

impl MemoryClass {
    pub fn memory(self) -> Memory {
        match self {
            MemoryClass::Rewindable | MemoryClass::Guarded => Memory::Rewindable,
            MemoryClass::Checkpointed | MemoryClass::Opaque => Memory::Opaque,
        }
    }

    /// As it is spelled in answers and reports.
    pub fn name(self) -> &'static str {
        match self {
            MemoryClass::Rewindable => "rewindable",
            MemoryClass::Guarded => "guarded",
            MemoryClass::Checkpointed => "checkpointed",
            MemoryClass::Opaque => "opaque",
        }
    }
}

/// What the opened context really has, as opposed to what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    pub n_cells: usize,
    pub n_seq_max: usize,
    pub n_batch: usize,
    pub memory: Memory,
    pub memory_class: MemoryClass,
    /// Whether flash attention was decided on; without it idle cells cost far more.
    pub flash_attention: bool,
    /// Whether windowed layers, where the model has some, keep all their cells.
    pub swa_full: bool,
    /// Most positions of one `save`; where the memory is opaque, all of them.
    pub n_piece_max: usize,
}

/// One token of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchToken {
    pub token: Token,
    pub pos: usize,
    pub seq: SeqId,
    /// Whether a token can be sampled after this one.
    pub wants_logits: bool,
}

/// Tokens of one `decode`, in order; index = row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub tokens: Vec<BatchToken>,
}

/// The context. Every id, position and range is checked before llama.cpp sees it: a bad one is an error here, an abort there.
pub trait Engine {
    /// State of one request's sampling; made by `sampler`, used by `sample`.
    type Sampler;

    fn limits(&self) -> Limits;

    /// A sampler that has seen `prompt` (penalties look back on it) and obeys `rules`.
    fn sampler(&self, sampling: &Sampling, rules: &AnswerRules, prompt: &[Token])
    -> Result<Self::Sampler, EngineError>;

    /// What batches are computed under from now on; at first nothing. What cells hold stays what it was computed under, and nobody
    /// sees there what that was. Refused, with nothing changed: an adapter that was not loaded.
    fn set_adapters(&mut self, adapters: AdapterSet) -> Result<(), EngineError>;

    /// Computes the batch: 1 to `n_batch` tokens, positions of a sequence without a gap. On an error no token counts as computed;
    /// cells of the batch may hold remains, so the caller removes from the first position of each sequence in it.
    fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError>;

    /// The next token after `row` of the last successful batch, which must have had `wants_logits`. Feeds the sampler with it.
    fn sample(&mut self, row: usize, sampler: &mut Self::Sampler) -> Result<Token, EngineError>;

    /// Makes `dst` an owner of the cells of `src` in `range`; nothing is copied. `dst` must hold nothing in `range`.
    fn share(&mut self, src: SeqId, dst: SeqId, range: Range<usize>) -> Result<(), EngineError>;

    /// Takes `seq` off its cells from position `from` on; cells without an owner are free.
    fn remove(&mut self, seq: SeqId, from: usize) -> Result<(), EngineError>;

    /// Makes `dst` give up its own cells in `range` for those of `src`, which hold the same tokens. Nothing is copied.
    fn adopt(&mut self, src: SeqId, dst: SeqId, range: Range<usize>) -> Result<(), EngineError>;

    /// Copies the whole state of `src` into `dst`, cells included, which must be empty. The way of opaque memories.
    /// What a windowed memory has dropped of `src` is not copied, and nobody is told: only the end is sure to be there.
    fn copy_whole(&mut self, src: SeqId, dst: SeqId) -> Result<(), EngineError>;

    /// The bytes of the cells of `seq` in `range`, at most `n_piece_max` positions. An opaque memory saves all it holds: `range`
    /// must be that, and the state is the one of its end. Nothing changes that could be seen.
    fn save(&mut self, seq: SeqId, range: Range<usize>) -> Result<Vec<u8>, EngineError>;

    /// Puts saved bytes behind what `dst` holds, which must end at `range.start`; the tokens before must be those that stood
    /// before them when they were saved. Takes as many free cells as `range` is long. Refused are bytes of another shape or of
    /// other positions; other weights or flipped bits cannot be seen here. On an error `dst` is as before.
    fn restore(&mut self, dst: SeqId, range: Range<usize>, bytes: &[u8]) -> Result<(), EngineError>;

    /// The bytes of the part of `seq` that goes forward only, as it is at the end of the sequence: what `rewind` wants. For
    /// checkpointed memories.
    fn checkpoint(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError>;

    /// Cuts `seq` at `to`, from where it goes on as if nothing had come behind. `checkpoint`: of this very sequence when it ended
    /// at `to`; nobody can see if it was another's. On an error that comes late `seq` holds nothing any more, see `held`.
    fn rewind(&mut self, seq: SeqId, to: usize, checkpoint: &[u8]) -> Result<(), EngineError>;

    /// All of this context, beside the model's files, that saved bytes depend on: bytes saved under another form must never be
    /// restored.
    fn saved_form(&self) -> String;

    /// Positions held by `seq`: smallest to largest plus one; `None` if it holds none.
    fn held(&self, seq: SeqId) -> Option<Range<usize>>;

    /// The bytes of all that `seq` holds, for tests of exactness. What a windowed memory has dropped is not in them.
    fn state(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError>;

    /// Logits of `row` of the last successful batch, for tests of exactness.
    fn logits(&self, row: usize) -> Result<&[f32], EngineError>;
}

/// Refuses a set with an adapter that is none of the `n_adapters` that were loaded.
fn check_adapters(adapters: AdapterSet, n_adapters: usize) -> Result<(), EngineError> {
    match adapters.parts().find(|&(index, _)| index >= n_adapters) {
        None => Ok(()),
        Some((index, _)) => {
            Err(EngineError::Context(format!("there is no adapter {index}: {n_adapters} were loaded with the model")))
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// llama_decode = 1: the context stays usable; evict and retry.
    #[error("no free cells for a batch of {n_tokens} tokens")]
    NoFreeCells { n_tokens: usize },
    #[error("{0}")]
    Failed(String),
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("model {path}: {reason}")]
    Load { path: String, reason: String },
    #[error("adapter {path}: {reason}")]
    Adapter { path: String, reason: String },
    #[error("{0}")]
    Context(String),
    #[error("sequence {seq}: {reason}")]
    Sequence { seq: u16, reason: String },
    #[error("sampling: {0}")]
    Sampling(String),
    #[error("chat template: {0}")]
    Template(String),
    /// What is wanted of an answer cannot be had.
    #[error("{place}: {reason}")]
    Wanted { place: String, reason: String },
}

/// Whether a control token's spelling in a text means the token or just its letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    Parsed,
    Text,
}

/// The model's vocabulary.
pub trait Vocab: Send + Sync {
    fn n_tokens(&self) -> usize;

    /// Tokens of `text`, without BOS or EOS added.
    fn tokenize(&self, text: &str, special: Special) -> Vec<Token>;

    /// Appends the bytes of `token`: part of a UTF-8 character at times, nothing for a control token.
    fn piece(&self, token: Token, out: &mut Vec<u8>);

    /// The same, but a control token of `spelled` by its spelling.
    fn spell(&self, token: Token, spelled: &[Token], out: &mut Vec<u8>) {
        let spelling = || self.control_tokens().iter().find(|(control, _)| *control == token);
        match spelled.contains(&token).then(spelling).flatten() {
            Some((_, spelling)) => out.extend_from_slice(spelling.as_bytes()),
            None => self.piece(token, out),
        }
    }

    /// Whether `token` ends an answer.
    fn is_end(&self, token: Token) -> bool;

    /// BOS, if prompts of this model begin with one.
    fn bos(&self) -> Option<Token>;

    /// All control tokens with their spelling: what a template may write and a user may not.
    fn control_tokens(&self) -> &[(Token, String)];
}

/// The model's chat template.
pub trait ChatTemplate: Send + Sync {
    /// Whether the template has a place for tool definitions.
    fn takes_tools(&self) -> bool;

    /// Whether a prompt can say that the model is to think, or not to.
    fn switches_thinking(&self) -> bool {
        false
    }

    /// Parses `tools` (JSON text of each definition) once for many renders; the expensive half, to be cached by content.
    fn prepare(&self, tools: &[String]) -> Result<Box<dyn PreparedTemplate>, EngineError>;

    /// What an answer must obey, and who reads it, for a request with `tools` (as the client sent them, whether or not the
    /// template has a place for them). `follows_result`: the prompt ends with a tool's result; some templates open the answer
    /// in another way then. Expensive, to be cached by content. Who is wrong about tools or shape is told where: `EngineError::Wanted`.
    fn answer(&self, tools: &[String], wanted: &Wanted, follows_result: bool) -> Result<Answer, EngineError> {
        let _ = (tools, wanted, follows_result);
        Ok(Answer { rules: Arc::default(), reader: Arc::new(PlainReader), opening: String::new() })
    }
}

/// What an answer must obey, who reads it, and what the prompt already holds of it.
#[derive(Clone, Debug)]
pub struct Answer {
    pub rules: Arc<AnswerRules>,
    pub reader: Arc<dyn AnswerReader>,
    /// What the template writes at the prompt's end to open the answer.
    pub opening: String,
}

/// A template with its tools.
pub trait PreparedTemplate: Send {
    /// The prompt's text: `messages`, then the opening of the assistant's turn if `open_answer`. As if it were `unix_s`, for a
    /// template that prints the date; with what templates know of `wanted`: whether the model is to think, and the arguments
    /// that they may ask for by name.
    fn render_at(
        &self,
        messages: &[Message],
        open_answer: bool,
        unix_s: i64,
        wanted: &Wanted,
    ) -> Result<String, EngineError>;

    /// The same where neither matters: on the first day of 1970, with nothing wanted.
    fn render(&self, messages: &[Message], open_answer: bool) -> Result<String, EngineError> {
        self.render_at(messages, open_answer, 0, &Wanted::default())
    }
}
