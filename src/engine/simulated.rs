//! The simulated engine: no model, but the same limits and the same silent faults as llama.cpp's, so that wrong reuse shows.
//!
//! A cell's *content* is a hash of its token, its position and every content its sequence saw when it was computed, as real K/V
//! is, and of the adapters it was computed under. The next token is a hash of all contents the sequence sees. Whoever stands on a wrong, missing or stale cell says
//! something else than a cold run does.
//!
//! Faults that llama.cpp has and reports to nobody (measured: logits off by 4 to 14) are the same here: windowed memories
//! recycle the old cells of a sequence that is their only owner, recurrent memories share and copy their latest state whatever
//! range is asked for and refuse to cut, and a windowed state copied late arrives as a success with cells missing.

mod answers;
mod chat;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::thinking::Budget;
use super::{
    AnswerRules, Batch, ChatTemplate, ContextOptions, DecodeError, Engine, EngineError, Limits, Memory, MemoryClass,
    Model, ModelFacts, SeqId, Special, Vocab, check_adapters,
};
use crate::request::{AdapterSet, Sampling, Token};

pub use chat::{ByteVocab, ChatMl, Dated};

/// How the simulated memory behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attention {
    Full,
    /// Each token sees this many positions, itself included.
    Window(usize),
    /// The state is one value per sequence: no cutting, no looking back.
    Recurrent,
}

/// Weights that weigh nothing.
#[derive(Clone)]
pub struct SimulatedModel {
    facts: ModelFacts,
    vocab: Arc<dyn Vocab>,
    template: Arc<dyn ChatTemplate>,
    attention: Attention,
    n_adapters: usize,
    /// One answer in how many tokens ends at each token.
    end_odds: u64,
    repeats: Option<Repeats>,
    faults: Faults,
}

/// See `SimulatedModel::repeating`.
#[derive(Clone, Copy)]
struct Repeats {
    period: usize,
    odds: u64,
}

/// Faults to inject into a running engine, and what it did: tests keep a clone.
#[derive(Clone, Default)]
pub struct Faults {
    failures: Arc<AtomicUsize>,
    save_failures: Arc<AtomicUsize>,
    restore_failures: Arc<AtomicUsize>,
    short_restores: Arc<AtomicUsize>,
    panics: Arc<AtomicBool>,
    n_computed: Arc<AtomicUsize>,
    n_free: Arc<AtomicUsize>,
    gate: Arc<AtomicUsize>,
    script: Arc<Mutex<VecDeque<String>>>,
}

impl Faults {
    /// Lets the next `n` calls of `decode` fail, as a broken device would.
    pub fn fail_next_decodes(&self, n: usize) {
        self.failures.store(n, Ordering::SeqCst);
    }

    /// Lets the next `n` calls of `save` fail.
    pub fn fail_next_saves(&self, n: usize) {
        self.save_failures.store(n, Ordering::SeqCst);
    }

    /// Lets the next `n` calls of `restore` be refused before a cell is taken.
    pub fn fail_next_restores(&self, n: usize) {
        self.restore_failures.store(n, Ordering::SeqCst);
    }

    /// Lets the next `n` calls of `restore` put fewer cells back than the bytes hold, as llama.cpp can and calls a success;
    /// the engine sees it when it compares positions.
    pub fn shorten_next_restores(&self, n: usize) {
        self.short_restores.store(n, Ordering::SeqCst);
    }

    /// Tokens computed since the engine was opened.
    pub fn n_computed(&self) -> usize {
        self.n_computed.load(Ordering::SeqCst)
    }

    /// Cells without an owner after the last change: what hob has to know without asking.
    pub fn n_free(&self) -> usize {
        self.n_free.load(Ordering::SeqCst)
    }

    /// Lets only `n` more calls of `decode` through; the next one waits until the gate opens wider. A fresh engine has no gate.
    pub fn gate(&self, n: usize) {
        self.gate.store(n + 1, Ordering::SeqCst);
    }

    /// Takes the gate away.
    pub fn open_gate(&self) {
        self.gate.store(0, Ordering::SeqCst);
    }

    /// Lets the next call of `decode` panic, as a broken invariant would.
    pub fn panic_at_next_decode(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    /// Makes the next answer that nothing binds be `text`, control tokens by their spelling.
    pub fn say_next(&self, text: impl Into<String>) {
        self.script.lock().expect("nobody panics while it is held").push_back(text.into());
    }

    fn next_said(&self) -> Option<String> {
        self.script.lock().expect("nobody panics while it is held").pop_front()
    }

    /// Whether one of the failures that `counter` holds ready is due.
    fn take(counter: &AtomicUsize) -> bool {
        counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
    }

    fn pass_gate(&self) {
        loop {
            let pass = |n: usize| match n {
                0 => Some(0),
                1 => None,
                n => Some(n - 1),
            };
            if self.gate.fetch_update(Ordering::SeqCst, Ordering::SeqCst, pass).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl SimulatedModel {
    /// A byte-level model with full attention and a ChatML-like template with a place for tools.
    pub fn new() -> SimulatedModel {
        SimulatedModel::with(Arc::new(ByteVocab::new()), Arc::new(ChatMl { takes_tools: true }))
    }

    /// The simulated engine under a real model's vocabulary and template.
    pub fn with(vocab: Arc<dyn Vocab>, template: Arc<dyn ChatTemplate>) -> SimulatedModel {
        let facts = ModelFacts {
            architecture: "simulated".to_owned(),
            kv_heads: vec![1],
            k_head_size: 4,
            v_head_size: 4,
            width: 4,
            n_vocab: vocab.n_tokens() as u64,
            n_context_train: 1 << 20,
            weight_bytes: 0,
            adapter_bytes: 0,
        };
        SimulatedModel {
            facts,
            vocab,
            template,
            attention: Attention::Full,
            n_adapters: 0,
            end_odds: 48,
            repeats: None,
            faults: Faults::default(),
        }
    }

    pub fn attention(mut self, attention: Attention) -> SimulatedModel {
        self.attention = attention;
        self
    }

    /// With so many adapters, each of which changes all that is computed under it and has 2,000 bytes.
    pub fn adapters(mut self, n_adapters: usize) -> SimulatedModel {
        self.n_adapters = n_adapters;
        self.facts.adapter_bytes = 2_000 * n_adapters as u64;
        self
    }

    /// A model that says again what it sees `period` positions back, but for one token in `odds`, which is what it would say
    /// anyway: where that is still depends on all that it sees.
    pub fn repeating(mut self, period: usize, odds: u64) -> SimulatedModel {
        self.repeats = Some(Repeats { period, odds });
        self
    }

    /// The handle for faults in engines of this model.
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }
}

impl Default for SimulatedModel {
    fn default() -> SimulatedModel {
        SimulatedModel::new()
    }
}

impl Model for SimulatedModel {
    type Engine<'a> = SimulatedEngine;

    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn memory_class(&self) -> MemoryClass {
        match self.attention {
            Attention::Full => MemoryClass::Rewindable,
            Attention::Window(_) => MemoryClass::Opaque,
            Attention::Recurrent => MemoryClass::Checkpointed,
        }
    }

    fn n_ids(&self, n_seq_max: usize) -> usize {
        n_seq_max
    }

    fn n_adapters(&self) -> usize {
        self.n_adapters
    }

    fn vocab(&self) -> Arc<dyn Vocab> {
        self.vocab.clone()
    }

    fn template(&self) -> Arc<dyn ChatTemplate> {
        self.template.clone()
    }

    fn open(&self, options: &ContextOptions) -> Result<SimulatedEngine, EngineError> {
        if options.n_seq_max == 0 || options.n_seq_max > 256 {
            return Err(EngineError::Context(format!("n_seq_max = {}: must be 1 to 256", options.n_seq_max)));
        }
        let engine = SimulatedEngine {
            limits: Limits {
                n_cells: options.n_cells,
                n_seq_max: options.n_seq_max,
                n_batch: options.n_batch,
                memory: self.memory(),
                memory_class: self.memory_class(),
                flash_attention: true,
                swa_full: false,
                n_piece_max: match self.memory() {
                    Memory::Rewindable => N_PIECE_MAX.min(options.n_batch),
                    Memory::Opaque => options.n_cells,
                },
            },
            attention: self.attention,
            n_adapters: self.n_adapters,
            adapters: AdapterSet::NONE,
            end_odds: self.end_odds,
            repeats: self.repeats,
            vocab: self.vocab.clone(),
            cells: vec![None; options.n_cells],
            sequences: vec![BTreeMap::new(); options.n_seq_max],
            rows: Vec::new(),
            faults: self.faults.clone(),
        };
        engine.show_free();
        Ok(engine)
    }
}

/// Most positions in one piece of saved cells.
const N_PIECE_MAX: usize = 256;

#[derive(Clone, PartialEq, Eq, Debug)]
struct Cell {
    token: Token,
    pos: usize,
    content: u64,
    n_owners: u32,
}

/// A context of simulated cells.
pub struct SimulatedEngine {
    limits: Limits,
    attention: Attention,
    n_adapters: usize,
    adapters: AdapterSet,
    end_odds: u64,
    repeats: Option<Repeats>,
    vocab: Arc<dyn Vocab>,
    cells: Vec<Option<Cell>>,
    /// For each sequence: position → cell.
    sequences: Vec<BTreeMap<usize, usize>>,
    /// What each row of the last batch saw; `None` where no logits were wanted.
    rows: Vec<Option<Row>>,
    faults: Faults,
}

#[derive(Clone, Debug)]
struct Row {
    logits: Vec<f32>,
    /// What a repeating model would say again.
    again: Option<Token>,
}

/// State of one request's simulated sampling.
#[derive(Clone, Debug)]
pub struct SimulatedSampler {
    /// What is left to say under a grammar or a script, the first token last; `None`: it says what it likes.
    bound: Option<Vec<Token>>,
    budget: Option<Budget>,
    /// 0 at temperature 0: then the same cells always say the same.
    seed: u64,
    n_drawn: u64,
    banned: Vec<Token>,
}

impl SimulatedEngine {
    /// Cells without an owner.
    pub fn n_free(&self) -> usize {
        self.cells.iter().filter(|cell| cell.is_none()).count()
    }

    /// What ends an answer in this vocabulary.
    fn end(&self) -> Token {
        let ends = self.vocab.control_tokens().iter().map(|(token, _)| *token);
        ends.into_iter().find(|token| self.vocab.is_end(*token)).expect("a chat model's vocabulary can end a turn")
    }

    fn show_free(&self) {
        self.faults.n_free.store(self.n_free(), Ordering::SeqCst);
    }

    fn sequence(&self, seq: SeqId) -> Result<&BTreeMap<usize, usize>, EngineError> {
        let found = self.sequences.get(usize::from(seq.0));
        found.ok_or_else(|| refused(seq, format!("ids are 0 to {}", self.limits.n_seq_max - 1)))
    }

    /// Hash of everything a token of `seq` at `pos` sees before itself.
    fn view(&self, seq: SeqId, pos: usize) -> u64 {
        let from = match self.attention {
            Attention::Full => 0,
            Attention::Window(n) => (pos + 1).saturating_sub(n),
            // One value: the latest.
            Attention::Recurrent => pos.saturating_sub(1),
        };
        let seen = self.sequences[usize::from(seq.0)].range(from..pos);
        seen.fold(SEED, |hash, (&at, &cell)| {
            let content = self.cells[cell].as_ref().expect("a sequence's cells are taken").content;
            mix(mix(hash, at as u64), content)
        })
    }

    /// What stands in `seq` a period before `pos`, if that can be said.
    fn again(&self, seq: SeqId, pos: usize) -> Option<Token> {
        let from = pos.checked_sub(self.repeats?.period)?;
        let cell = self.sequences[usize::from(seq.0)].get(&from)?;
        let token = self.cells[*cell].as_ref().expect("a sequence's cells are taken").token;
        let mut piece = Vec::new();
        self.vocab.piece(token, &mut piece);
        (!piece.is_empty() && !self.vocab.is_end(token)).then_some(token)
    }

    /// A free cell; a windowed memory also takes one that fell out of its only owner's window.
    fn find_cell(&mut self) -> Option<usize> {
        if let Some(free) = self.cells.iter().position(Option::is_none) {
            return Some(free);
        }
        let Attention::Window(n) = self.attention else { return None };
        let stale = self.sequences.iter().enumerate().find_map(|(seq, cells)| {
            let &end = cells.keys().next_back()?;
            let (&pos, &cell) = cells.range(..(end + 1).saturating_sub(n)).next()?;
            (self.cells[cell].as_ref()?.n_owners == 1).then_some((seq, pos, cell))
        });
        let (seq, pos, cell) = stale?;
        self.sequences[seq].remove(&pos);
        self.cells[cell] = None;
        Some(cell)
    }

    fn disown(&mut self, cell: usize) {
        let place = &mut self.cells[cell];
        let owned = place.as_mut().expect("a sequence's cells are taken");
        owned.n_owners -= 1;
        if owned.n_owners == 0 {
            *place = None;
        }
    }

    fn own(&mut self, seq: SeqId, pos: usize, cell: usize) {
        self.cells[cell].as_mut().expect("a shared cell is taken").n_owners += 1;
        self.sequences[usize::from(seq.0)].insert(pos, cell);
    }
}

impl SimulatedEngine {
    /// The saved form of the cells of `seq` in `range`: position, token and content of each.
    fn bytes(&self, seq: SeqId, range: impl std::ops::RangeBounds<usize>) -> Result<Vec<u8>, EngineError> {
        let saved = self.sequence(seq)?.range(range).flat_map(|(&pos, &cell)| {
            let cell = self.cells[cell].as_ref().expect("a sequence's cells are taken");
            [pos as u64, cell.token.0 as u64, cell.content].into_iter().flat_map(u64::to_le_bytes)
        });
        Ok(saved.collect())
    }

    /// Puts saved cells behind what `seq` holds: all that were saved, which a windowed memory calls a success.
    fn put(&mut self, seq: SeqId, state: &[u8]) -> Result<(), EngineError> {
        for saved in state.chunks_exact(CELL_BYTES) {
            let word =
                |i: usize| u64::from_le_bytes(saved[i * 8..i * 8 + 8].try_into().expect("eight bytes are a word"));
            let cell = self.find_cell().ok_or_else(|| refused(seq, "no free cells to restore into"))?;
            let pos = word(0) as usize;
            self.cells[cell] = Some(Cell { token: Token(word(1) as i32), pos, content: word(2), n_owners: 0 });
            self.own(seq, pos, cell);
        }
        Ok(())
    }

    /// What the model would like to say after `row`.
    fn say(&self, row: usize, sampler: &mut SimulatedSampler) -> Result<Token, EngineError> {
        let logits = self.logits(row)?;
        let mut hash =
            logits[..N_LOGITS_SEEN].iter().fold(mix(SEED, sampler.seed), |hash, &logit| mix(hash, logit as u64));
        if sampler.seed != 0 {
            hash = mix(hash, sampler.n_drawn);
        }
        sampler.n_drawn += 1;
        let n_vocab = self.vocab.n_tokens() as u64;
        if let Some(again) = self.rows[row].as_ref().and_then(|row| row.again)
            && !mix(hash, 11).is_multiple_of(self.repeats.map_or(1, |repeats| repeats.odds))
            && !sampler.banned.contains(&again)
        {
            return Ok(again);
        }
        let wants_end = mix(hash, 3).is_multiple_of(self.end_odds);
        // Walk from a hashed place to the first token that may be said.
        let start = mix(hash, 5) % n_vocab;
        let mut piece = Vec::new();
        let said = (0..n_vocab).map(|i| Token(((start + i) % n_vocab) as i32)).find(|&token| {
            piece.clear();
            self.vocab.piece(token, &mut piece);
            let is_fit =
                if wants_end { self.vocab.is_end(token) } else { !piece.is_empty() && !self.vocab.is_end(token) };
            is_fit && !sampler.banned.contains(&token)
        });
        said.ok_or_else(|| EngineError::Sampling("logit_bias bans every token".to_owned()))
    }

    /// Takes `seq` off all its cells from position `from` on.
    fn cut(&mut self, seq: SeqId, from: usize) {
        for (_, cell) in self.sequences[usize::from(seq.0)].split_off(&from) {
            self.disown(cell);
        }
        self.show_free();
    }
}

/// Bytes of one saved cell: three words.
const CELL_BYTES: usize = 24;

fn refused(seq: SeqId, reason: impl Into<String>) -> EngineError {
    EngineError::Sequence { seq: seq.0, reason: reason.into() }
}

impl Engine for SimulatedEngine {
    type Sampler = SimulatedSampler;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn sampler(
        &self,
        sampling: &Sampling,
        rules: &AnswerRules,
        _prompt: &[Token],
    ) -> Result<SimulatedSampler, EngineError> {
        let banned = sampling.logit_bias.iter().filter(|(_, bias)| *bias <= -100.0).map(|&(token, _)| token).collect();
        let seed = if sampling.temperature == 0.0 { 0 } else { u64::from(sampling.seed.unwrap_or(1)) };
        let tokens = |text: &str| self.vocab.tokenize(text, Special::Parsed);
        let of_grammar = rules.grammar.as_ref().filter(|grammar| !grammar.is_lazy).map(|grammar| grammar.text.clone());
        let bound = of_grammar.or_else(|| self.faults.next_said()).map(|text| {
            let mut said = tokens(&text);
            said.reverse();
            said
        });
        let budget = rules.thinking.clone().map(|thinking| {
            let opening = tokens(&thinking.opening);
            Budget::new(thinking, &opening)
        });
        Ok(SimulatedSampler { bound, budget, seed, n_drawn: 0, banned })
    }

    fn set_adapters(&mut self, adapters: AdapterSet) -> Result<(), EngineError> {
        check_adapters(adapters, self.n_adapters)?;
        self.adapters = adapters;
        Ok(())
    }

    fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        self.faults.pass_gate();
        assert!(!self.faults.panics.load(Ordering::SeqCst), "a test asked for this panic");
        let n_tokens = batch.tokens.len();
        if n_tokens == 0 || n_tokens > self.limits.n_batch {
            return Err(DecodeError::Failed(format!("a batch of {n_tokens}: must be 1 to {}", self.limits.n_batch)));
        }
        if Faults::take(&self.faults.failures) {
            return Err(DecodeError::Failed("simulated failure".to_owned()));
        }
        for (row, token) in batch.tokens.iter().enumerate() {
            let earlier = batch.tokens[..row].iter().filter(|earlier| earlier.seq == token.seq).count();
            let end = self.held(token.seq).map_or(0, |held| held.end) + earlier;
            let is_known =
                self.sequence(token.seq).is_ok() && (0..self.vocab.n_tokens() as i32).contains(&token.token.0);
            if !is_known || token.pos != end {
                return Err(DecodeError::Failed(format!("row {row}: {token:?} does not continue position {end}")));
            }
        }
        let mut rows = Vec::with_capacity(n_tokens);
        for token in &batch.tokens {
            let view = self.view(token.seq, token.pos);
            let content = mix(mix(view, token.pos as u64), token.token.0 as u64);
            let content = self
                .adapters
                .parts()
                .fold(content, |content, (index, scale)| mix(mix(content, index as u64), scale.get().to_bits().into()));
            let Some(cell) = self.find_cell() else {
                // llama.cpp looks for all cells first: nothing of the batch stays.
                for done in &batch.tokens[..rows.len()] {
                    if let Some(cell) = self.sequences[usize::from(done.seq.0)].remove(&done.pos) {
                        self.disown(cell);
                    }
                }
                return Err(DecodeError::NoFreeCells { n_tokens });
            };
            self.cells[cell] = Some(Cell { token: token.token, pos: token.pos, content, n_owners: 0 });
            self.own(token.seq, token.pos, cell);
            rows.push(token.wants_logits.then(|| Row {
                logits: logits(content, self.vocab.n_tokens()),
                again: self.again(token.seq, token.pos + 1),
            }));
        }
        self.rows = rows;
        self.faults.n_computed.fetch_add(n_tokens, Ordering::SeqCst);
        self.show_free();
        Ok(())
    }

    fn sample(&mut self, row: usize, sampler: &mut SimulatedSampler) -> Result<Token, EngineError> {
        let token = match (sampler.budget.as_ref().and_then(Budget::forced), &mut sampler.bound) {
            (Some(token), _) => token,
            (None, Some(bound)) => bound.pop().unwrap_or_else(|| self.end()),
            (None, None) => self.say(row, sampler)?,
        };
        if let Some(budget) = &mut sampler.budget {
            budget.accept(token, true);
        }
        Ok(token)
    }

    fn share(&mut self, src: SeqId, dst: SeqId, range: Range<usize>) -> Result<(), EngineError> {
        let held = self.sequence(src)?;
        let cells: Vec<(usize, usize)> = match self.attention {
            // The latest state, whatever was asked for.
            Attention::Recurrent => held.iter().next_back().map(|(&pos, &cell)| (pos, cell)).into_iter().collect(),
            _ => held.range(range.clone()).map(|(&pos, &cell)| (pos, cell)).collect(),
        };
        if self.sequence(dst)?.range(range).next().is_some() {
            return Err(refused(dst, "holds cells in the range to share"));
        }
        for (pos, cell) in cells {
            self.own(dst, pos, cell);
        }
        Ok(())
    }

    fn adopt(&mut self, src: SeqId, dst: SeqId, range: Range<usize>) -> Result<(), EngineError> {
        self.sequence(src)?;
        let own: Vec<usize> = self.sequence(dst)?.range(range.clone()).map(|(&pos, _)| pos).collect();
        for pos in own {
            let cell = self.sequences[usize::from(dst.0)].remove(&pos).expect("the position was listed");
            self.disown(cell);
        }
        self.show_free();
        self.share(src, dst, range)
    }

    fn remove(&mut self, seq: SeqId, from: usize) -> Result<(), EngineError> {
        let end = self.sequence(seq)?.keys().next_back().map_or(0, |&pos| pos + 1);
        if self.attention == Attention::Recurrent && from > 0 && from < end {
            return Err(refused(seq, format!("cannot be cut at {from} of {end}")));
        }
        self.cut(seq, from);
        Ok(())
    }

    fn held(&self, seq: SeqId) -> Option<Range<usize>> {
        let held = self.sequence(seq).ok()?;
        Some(*held.keys().next()?..*held.keys().next_back()? + 1)
    }

    fn state(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError> {
        let held = self.sequence(seq)?;
        let end = held.keys().next_back().map_or(0, |&pos| pos + 1);
        let from = match self.attention {
            Attention::Full => 0,
            // What left the window is not saved, and nobody is told.
            Attention::Window(n) => end.saturating_sub(n),
            Attention::Recurrent => end.saturating_sub(1),
        };
        self.bytes(seq, from..)
    }

    fn copy_whole(&mut self, src: SeqId, dst: SeqId) -> Result<(), EngineError> {
        let state = self.state(src)?;
        if self.held(dst).is_some() {
            return Err(refused(dst, "must be empty to take a copy"));
        }
        let copied = self.put(dst, &state);
        self.show_free();
        copied
    }

    fn save(&mut self, seq: SeqId, range: Range<usize>) -> Result<Vec<u8>, EngineError> {
        let held = self.held(seq).unwrap_or(0..0);
        let is_held = match self.limits.memory {
            Memory::Rewindable => held.start <= range.start && range.end <= held.end,
            Memory::Opaque => range == (0..held.end),
        };
        if range.is_empty() || range.len() > self.limits.n_piece_max || !is_held {
            return Err(refused(seq, format!("cannot save {range:?} of {held:?}")));
        }
        if Faults::take(&self.faults.save_failures) {
            return Err(refused(seq, "simulated failure to save"));
        }
        match self.limits.memory {
            Memory::Rewindable => self.bytes(seq, range),
            Memory::Opaque => self.state(seq),
        }
    }

    fn restore(&mut self, dst: SeqId, range: Range<usize>, bytes: &[u8]) -> Result<(), EngineError> {
        let end = self.sequence(dst)?.keys().next_back().map_or(0, |&pos| pos + 1);
        if range.is_empty() || range.len() > self.limits.n_piece_max || range.start != end {
            return Err(refused(dst, format!("ends at {end} and cannot go on with {range:?}")));
        }
        let (cells, rest) = bytes.as_chunks::<CELL_BYTES>();
        let positions = cells.iter().map(|cell| u64::from_le_bytes(cell[..8].try_into().expect("a word")) as usize);
        // What a windowed or recurrent memory did not save is missing at the front.
        let first = match self.limits.memory {
            Memory::Rewindable => range.start,
            Memory::Opaque => range.end.saturating_sub(cells.len()),
        };
        if !rest.is_empty() || !positions.eq(first..range.end) {
            return Err(refused(dst, format!("{} bytes are not the cells of {range:?}", bytes.len())));
        }
        if Faults::take(&self.faults.restore_failures) {
            return Err(refused(dst, "simulated failure to restore"));
        }
        let is_short = Faults::take(&self.faults.short_restores);
        let n_put = if is_short { bytes.len() - CELL_BYTES } else { bytes.len() };
        let put = self.put(dst, &bytes[..n_put]);
        if put.is_err() || self.held(dst).is_none_or(|held| held.end != range.end) {
            self.cut(dst, range.start);
            return put.and(Err(refused(dst, format!("restored is not {range:?}"))));
        }
        self.show_free();
        Ok(())
    }

    fn checkpoint(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError> {
        if self.attention != Attention::Recurrent || self.held(seq).is_none() {
            return Err(refused(seq, "has no state to go back to"));
        }
        if Faults::take(&self.faults.save_failures) {
            return Err(refused(seq, "simulated failure to save"));
        }
        self.state(seq)
    }

    /// As llama.cpp's: only the position can be seen to be wrong. Another sequence's state is put back all the same.
    fn rewind(&mut self, seq: SeqId, to: usize, checkpoint: &[u8]) -> Result<(), EngineError> {
        let end = self.held(seq).map_or(0, |held| held.end);
        let pos = checkpoint.first_chunk().map(|word| u64::from_le_bytes(*word) as usize + 1);
        let is_fit = self.attention == Attention::Recurrent && checkpoint.len() == CELL_BYTES && pos == Some(to);
        if !is_fit || to > end {
            return Err(refused(seq, format!("ends at {end} and cannot go back to {to}")));
        }
        if Faults::take(&self.faults.restore_failures) {
            self.cut(seq, 0);
            return Err(refused(seq, "simulated failure to go back"));
        }
        self.cut(seq, to - 1);
        let put = self.put(seq, checkpoint);
        self.show_free();
        put
    }

    fn saved_form(&self) -> String {
        format!("simulated, {:?}", self.attention)
    }

    fn logits(&self, row: usize) -> Result<&[f32], EngineError> {
        let row = self.rows.get(row).and_then(Option::as_ref);
        Ok(&row.ok_or_else(|| EngineError::Sampling("the row has no logits".to_owned()))?.logits)
    }
}

/// The first logits of a row are four parts of one hash, and these alone decide what is said.
const N_LOGITS_SEEN: usize = 4;

fn logits(content: u64, n_vocab: usize) -> Vec<f32> {
    let hash = mix(content, 7);
    let seen = [0, 16, 32, 48].map(|shift| ((hash >> shift) & 0xffff) as f32);
    let others = (N_LOGITS_SEEN..n_vocab).map(|token| (mix(hash, token as u64) & 0xffff) as f32);
    seen.into_iter().chain(others).collect()
}

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of splitmix64 over `hash` and `word`.
fn mix(hash: u64, word: u64) -> u64 {
    let mut z = hash ^ word.wrapping_add(SEED).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
