//! Defines `Recording`: a model whose engine does what the real one does and writes down what it was told.
//!
//! A *row* is one token whose logits were wanted, with all tokens before it. The *order* of a sequence are its positions in
//! the order of its cells, read from llama.cpp's own state. The engine keeps a mirror beside itself, which cell each
//! position of each sequence should stand in, and compares what can be compared after each step.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hob::engine::{
    AnswerRules, Batch, ChatTemplate, ContextOptions, DecodeError, Engine, EngineError, Limits, Memory, MemoryClass,
    Model, ModelFacts, SeqId, Vocab,
};
use hob::request::{AdapterSet, Sampling, Token};

pub(crate) struct Recording<M> {
    model: Arc<M>,
    log: Log,
}

impl<M> Recording<M> {
    pub(crate) fn of(model: &Arc<M>) -> (Recording<M>, Log) {
        let log = Log::default();
        (Recording { model: model.clone(), log: log.clone() }, log)
    }
}

impl<M: Model> Model for Recording<M> {
    type Engine<'a> = RecordingEngine<M::Engine<'a>>;

    fn facts(&self) -> &ModelFacts {
        self.model.facts()
    }

    fn memory_class(&self) -> MemoryClass {
        self.model.memory_class()
    }

    fn n_ids(&self, n_seq_max: usize) -> usize {
        self.model.n_ids(n_seq_max)
    }

    fn n_adapters(&self) -> usize {
        self.model.n_adapters()
    }

    fn vocab(&self) -> Arc<dyn Vocab> {
        self.model.vocab()
    }

    fn template(&self) -> Arc<dyn ChatTemplate> {
        self.model.template()
    }

    fn open(&self, options: &ContextOptions) -> Result<Self::Engine<'_>, EngineError> {
        let engine = self.model.open(options)?;
        self.log.lock().mirror = vec![Vec::new(); engine.limits().n_seq_max];
        Ok(RecordingEngine { engine, log: self.log.clone() })
    }
}

/// Longer than any wait of these tests on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// A token whose logits were wanted.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The whole sequence up to this token.
    pub(crate) tokens: Vec<Token>,
    pub(crate) logits: Vec<f32>,
    /// Its sequence's positions in the order of their cells; empty where the memory is opaque.
    pub(crate) order: Vec<usize>,
    /// Tokens of the whole batch and of this sequence in it.
    pub(crate) n_batch: usize,
    pub(crate) n_own: usize,
}

impl Row {
    pub(crate) fn is_alone(&self) -> bool {
        self.n_batch == self.n_own
    }
}

/// What the engine did, and the gate before its steps. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<(Mutex<Written>, Condvar)>);

#[derive(Default)]
struct Written {
    /// Steps that may pass; `None`: all.
    n_permits: Option<usize>,
    waits_at_gate: bool,
    /// Tokens of each step.
    steps: Vec<usize>,
    n_refused: usize,
    n_ended: usize,
    rows: Vec<Row>,
    mirror: Vec<Vec<Cell>>,
    /// What was saved, and the tokens it stands for.
    saved: HashMap<Vec<u8>, Vec<Token>>,
    n_cells_ever: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cell {
    number: u64,
    token: Token,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Written> {
        // A test that is failing already still wants to end.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, is_early: impl Fn(&mut Written) -> bool) {
        let waited = self.0.1.wait_timeout_while(self.lock(), PATIENCE, is_early);
        assert!(!waited.unwrap().1.timed_out(), "the scheduler stopped moving");
    }

    /// Lets `n` more steps pass; the next one waits.
    pub(crate) fn gate(&self, n: usize) {
        self.lock().n_permits = Some(n);
        self.0.1.notify_all();
    }

    pub(crate) fn open_gate(&self) {
        self.lock().n_permits = None;
        self.0.1.notify_all();
    }

    /// Waits until a step stands before the closed gate, or `n_ended` requests have ended.
    pub(crate) fn await_gate(&self, n_ended: usize) {
        self.wait_while(|written| {
            let is_held = written.waits_at_gate && written.n_permits == Some(0);
            !is_held && written.n_ended < n_ended
        });
    }

    pub(crate) fn await_ended(&self, n_ended: usize) {
        self.wait_while(|written| written.n_ended < n_ended);
    }

    pub(crate) fn mark_ended(&self) {
        self.lock().n_ended += 1;
        self.0.1.notify_all();
    }

    fn pass_gate(&self) {
        let mut written = self.lock();
        while written.n_permits == Some(0) {
            written.waits_at_gate = true;
            self.0.1.notify_all();
            written = self.0.1.wait(written).unwrap();
        }
        written.waits_at_gate = false;
        written.n_permits = written.n_permits.map(|n| n - 1);
    }

    pub(crate) fn n_steps(&self) -> usize {
        self.lock().steps.len()
    }

    /// Tokens computed, all steps together.
    pub(crate) fn n_computed(&self) -> usize {
        self.lock().steps.iter().sum()
    }

    /// Steps that found no free cells.
    pub(crate) fn n_refused(&self) -> usize {
        self.lock().n_refused
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        self.lock().rows.clone()
    }

    /// The row behind exactly `tokens`; there must be one.
    pub(crate) fn row(&self, tokens: &[Token]) -> Row {
        let written = self.lock();
        let mut found = written.rows.iter().filter(|row| row.tokens == tokens);
        let row = found.next().expect("the prompt's last token was computed").clone();
        assert!(found.next().is_none(), "it was computed once");
        row
    }

    /// Cells that somebody owns, each counted once.
    pub(crate) fn n_cells(&self) -> usize {
        let written = self.lock();
        written.mirror.iter().flatten().map(|cell| cell.number).collect::<HashSet<u64>>().len()
    }
}

pub(crate) struct RecordingEngine<E> {
    engine: E,
    log: Log,
}

/// Positions of a sequence in the order of its cells: magic, sequence, streams, cells; then position, owners, owner each.
pub(crate) fn order_of(state: &[u8]) -> Vec<usize> {
    let word = |index: usize| u32::from_le_bytes(state[index * 4..index * 4 + 4].try_into().unwrap()) as usize;
    (0..word(3)).map(|cell| word(4 + cell * 3)).collect()
}

impl<E: Engine> Engine for RecordingEngine<E> {
    type Sampler = E::Sampler;

    fn limits(&self) -> Limits {
        self.engine.limits()
    }

    fn sampler(&self, sampling: &Sampling, rules: &AnswerRules, prompt: &[Token]) -> Result<E::Sampler, EngineError> {
        self.engine.sampler(sampling, rules, prompt)
    }

    fn set_adapters(&mut self, adapters: AdapterSet) -> Result<(), EngineError> {
        self.engine.set_adapters(adapters)
    }

    fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        self.log.pass_gate();
        let decoded = self.engine.decode(batch);
        let mut written = self.log.lock();
        if let Err(error) = decoded {
            written.n_refused += 1;
            return Err(error);
        }
        written.steps.push(batch.tokens.len());
        for token in &batch.tokens {
            written.n_cells_ever += 1;
            let cell = Cell { number: written.n_cells_ever, token: token.token };
            written.mirror[usize::from(token.seq.0)].push(cell);
        }
        let is_rewindable = self.engine.limits().memory == Memory::Rewindable;
        for (row, token) in batch.tokens.iter().enumerate().filter(|(_, token)| token.wants_logits) {
            let logits = self.engine.logits(row).unwrap().to_vec();
            let order = if is_rewindable { order_of(&self.engine.state(token.seq).unwrap()) } else { Vec::new() };
            // What the batch has behind it, of a draft, it does not see.
            let seen = &written.mirror[usize::from(token.seq.0)][..=token.pos];
            let tokens = seen.iter().map(|cell| cell.token).collect();
            let n_own = batch.tokens.iter().filter(|other| other.seq == token.seq).count();
            written.rows.push(Row { tokens, logits, order, n_batch: batch.tokens.len(), n_own });
        }
        for (seq_idx, cells) in written.mirror.iter().enumerate() {
            let held = self.engine.held(SeqId(seq_idx as u16));
            assert_eq!(held.as_ref().map_or(0, |held| held.end), cells.len(), "sequence {seq_idx}");
            assert!(!is_rewindable || held.is_none_or(|held| held.start == 0), "sequence {seq_idx}");
        }
        Ok(())
    }

    fn sample(&mut self, row: usize, sampler: &mut E::Sampler) -> Result<Token, EngineError> {
        self.engine.sample(row, sampler)
    }

    fn share(&mut self, src: SeqId, dst: SeqId, range: Range<usize>) -> Result<(), EngineError> {
        self.engine.share(src, dst, range.clone())?;
        let mirror = &mut self.log.lock().mirror;
        let shared = mirror[usize::from(src.0)][range].to_vec();
        mirror[usize::from(dst.0)].extend(shared);
        Ok(())
    }

    fn remove(&mut self, seq: SeqId, from: usize) -> Result<(), EngineError> {
        self.engine.remove(seq, from)?;
        self.log.lock().mirror[usize::from(seq.0)].truncate(from);
        Ok(())
    }

    fn adopt(&mut self, src: SeqId, dst: SeqId, range: Range<usize>) -> Result<(), EngineError> {
        self.engine.adopt(src, dst, range.clone())?;
        let mirror = &mut self.log.lock().mirror;
        let adopted = mirror[usize::from(src.0)][range.clone()].to_vec();
        for (own, adopted) in mirror[usize::from(dst.0)][range].iter_mut().zip(adopted) {
            assert_eq!(own.token, adopted.token, "adopted cells hold the same tokens");
            *own = adopted;
        }
        Ok(())
    }

    fn copy_whole(&mut self, src: SeqId, dst: SeqId) -> Result<(), EngineError> {
        self.engine.copy_whole(src, dst)?;
        let written = &mut *self.log.lock();
        for place in 0..written.mirror[usize::from(src.0)].len() {
            written.n_cells_ever += 1;
            let copied = Cell { number: written.n_cells_ever, ..written.mirror[usize::from(src.0)][place] };
            written.mirror[usize::from(dst.0)].push(copied);
        }
        Ok(())
    }

    fn save(&mut self, seq: SeqId, range: Range<usize>) -> Result<Vec<u8>, EngineError> {
        let bytes = self.engine.save(seq, range.clone())?;
        let written = &mut *self.log.lock();
        let tokens = written.mirror[usize::from(seq.0)][range].iter().map(|cell| cell.token).collect();
        written.saved.insert(bytes.clone(), tokens);
        Ok(bytes)
    }

    fn restore(&mut self, dst: SeqId, range: Range<usize>, bytes: &[u8]) -> Result<(), EngineError> {
        self.engine.restore(dst, range.clone(), bytes)?;
        let written = &mut *self.log.lock();
        let tokens = written.saved.get(bytes).expect("what is restored was saved").clone();
        assert_eq!(tokens.len(), range.len(), "restored is what was saved");
        for token in tokens {
            written.n_cells_ever += 1;
            let cell = Cell { number: written.n_cells_ever, token };
            written.mirror[usize::from(dst.0)].push(cell);
        }
        Ok(())
    }

    fn checkpoint(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError> {
        self.engine.checkpoint(seq)
    }

    fn rewind(&mut self, seq: SeqId, to: usize, checkpoint: &[u8]) -> Result<(), EngineError> {
        self.engine.rewind(seq, to, checkpoint)?;
        self.log.lock().mirror[usize::from(seq.0)].truncate(to);
        Ok(())
    }

    fn saved_form(&self) -> String {
        self.engine.saved_form()
    }

    fn held(&self, seq: SeqId) -> Option<Range<usize>> {
        self.engine.held(seq)
    }

    fn state(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError> {
        self.engine.state(seq)
    }

    fn logits(&self, row: usize) -> Result<&[f32], EngineError> {
        self.engine.logits(row)
    }
}
