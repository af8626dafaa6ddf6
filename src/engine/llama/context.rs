//! Defines `LlamaEngine`: llama.cpp's context with its cells, behind checks.
//!
//! A *span* is the range of positions a sequence holds. The engine keeps every span in step with what llama.cpp does, so
//! that a wrong id, position or range is an error here; there it would abort the process or, worse, pass: a sequence
//! added to a cell twice, a partial removal on a model that cannot do it. It decides nothing: when to share or evict is
//! the scheduler's.
//!
//! A *guard* is the second owner of each cell of a sequence, in models with windowed layers that are cut and shared all the
//! same. llama.cpp recycles the cells that left the window of their only owner, silently and while thousands are free; cells of
//! two owners it leaves alone. Guards and the scratch id of `saving` are ids of the context that nobody else sees.
//!
//! Threads: decoding and prefill use `threads` of `ContextOptions`; which number is best beside other work, and why
//! `GOMP_SPINCOUNT` must be set before the first call of llama.cpp, stands where `main` sets it.

use std::ops::Range;

use llama_cpp_sys_2 as sys;

use super::LoadedModel;
use super::backend::with_errors;
use super::form::Form;
use super::raw::{self, Part, Undone};
use super::sampler::Sampler;
use crate::engine::{
    AnswerRules, Batch, ContextOptions, DecodeError, Engine, EngineError, KvType, Limits, Memory, MemoryClass, SeqId,
    check_adapters,
};
use crate::request::{AdapterSet, Sampling, Token};

/// The one context of a loaded model. Not `Sync`: it lives on the scheduler's thread.
pub struct LlamaEngine<'a> {
    pub(super) context: raw::Context<'a>,
    batch: raw::Batch,
    pub(super) limits: Limits,
    pub(super) ids: Ids,
    /// How a sequence's bytes are laid out, if that is known.
    pub(super) form: Option<Form>,
    /// See `Engine::saved_form`.
    saved_form: String,
    /// Positions that a windowed layer sees; `None` without a guard.
    window: Option<usize>,
    model: &'a LoadedModel,
    n_vocab: i32,
    /// By sequence id; an empty range holds nothing.
    pub(super) spans: Vec<Range<usize>>,
    /// Whether each row of the last successful batch has logits.
    rows: Vec<bool>,
}

/// LLAMA_MAX_SEQ of llama.cpp, a compile-time constant there.
const N_IDS_MAX: usize = 256;

/// The ids of the context: those of sequences first, then those that only the engine knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ids {
    n_sequences: usize,
    class: MemoryClass,
}

impl Ids {
    pub(super) fn of(class: MemoryClass, n_sequences: usize) -> Ids {
        Ids { n_sequences, class }
    }

    pub(super) fn total(self) -> usize {
        match self.class {
            MemoryClass::Rewindable => self.n_sequences + 1,
            MemoryClass::Guarded => 2 * self.n_sequences + 1,
            // Each id of a recurrent memory costs a state, and wholes need no scratch.
            MemoryClass::Checkpointed | MemoryClass::Opaque => self.n_sequences,
        }
    }

    /// Most sequences that a context can have.
    fn n_sequences_max(self) -> usize {
        (1..=N_IDS_MAX).rev().find(|&n| Ids { n_sequences: n, ..self }.total() <= N_IDS_MAX).unwrap_or(1)
    }

    pub(super) fn scratch(self) -> Option<i32> {
        (self.class.memory() == Memory::Rewindable).then_some(self.n_sequences as i32)
    }

    fn guard(self, seq: SeqId) -> Option<i32> {
        (self.class == MemoryClass::Guarded).then_some(self.n_sequences as i32 + 1 + i32::from(seq.0))
    }
}

/// A position that llama.cpp takes for the end of a sequence.
const END: i32 = -1;

/// GGML_MAX_N_THREADS; ggml asserts on more.
const N_THREADS_MAX: usize = 512;

/// Positions are 32-bit and signed; llama.cpp rounds the number of cells up, so some room is left.
const N_CELLS_MAX: usize = 1 << 30;

/// Most positions in one piece of saved cells: a copy in or out then takes no longer than a small step.
const N_PIECE_MAX: usize = 256;

impl<'a> LlamaEngine<'a> {
    pub(super) fn open(
        model: &'a LoadedModel,
        options: &ContextOptions,
        flash_attention: sys::llama_flash_attn_type,
    ) -> Result<LlamaEngine<'a>, EngineError> {
        let n_batch = options.n_batch.min(options.n_cells);
        check_number("cells", options.n_cells, 1..=N_CELLS_MAX)?;
        for n_threads in [options.threads.decode, options.threads.prefill] {
            check_number("threads", n_threads, 1..=N_THREADS_MAX)?;
        }
        check_number("tokens in a batch", n_batch, 1..=N_CELLS_MAX)?;
        let ids = Ids::of(model.class, options.n_seq_max);
        check_number("sequences", options.n_seq_max, 1..=ids.n_sequences_max())?;
        // llama.cpp keeps an output row for each id and asserts that a batch has as many tokens.
        let n_batch_there = n_batch.max(ids.total());

        let kv_type = cache_type(options.kv_type);
        let params = sys::llama_context_params {
            n_ctx: options.n_cells as u32,
            n_batch: n_batch_there as u32,
            // One physical batch for each logical one: the split of a prompt is then the scheduler's alone.
            n_ubatch: n_batch_there as u32,
            n_seq_max: ids.total() as u32,
            // Sharing cells between sequences needs one pool.
            kv_unified: true,
            // Windowed layers keep all cells, so that they cannot run out before the others do, and so that what is shared can be
            // cut behind its window. Their small pool would save memory only with fewer ids than n_ctx ÷ window.
            swa_full: true,
            flash_attn_type: flash_attention,
            type_k: kv_type,
            type_v: kv_type,
            n_threads: options.threads.decode as i32,
            n_threads_batch: options.threads.prefill as i32,
            // SAFETY: it returns a value.
            ..unsafe { sys::llama_context_default_params() }
        };
        let (context, errors) = with_errors(|| raw::Context::open(&model.weights, params));
        let context = context.ok_or_else(|| EngineError::Context(reason("the context cannot be made", &errors)))?;

        let limits = Limits {
            n_cells: context.n_cells(),
            n_seq_max: options.n_seq_max,
            n_batch,
            memory: model.class.memory(),
            memory_class: model.class,
            flash_attention: false,
            swa_full: true,
            n_piece_max: match (model.class.memory(), model.window) {
                // Of a longer piece the windowed layers would give the last window alone.
                (Memory::Rewindable, Some(window)) => N_PIECE_MAX.min(window),
                (Memory::Rewindable, None) => N_PIECE_MAX,
                (Memory::Opaque, _) => context.n_cells(),
            },
        };
        let mut engine = LlamaEngine {
            context,
            batch: raw::Batch::of(limits.n_batch),
            limits,
            ids,
            form: None,
            saved_form: String::new(),
            window: model.window,
            model,
            n_vocab: model.weights.n_vocab(),
            spans: vec![0..0; limits.n_seq_max],
            rows: Vec::new(),
        };
        engine.form = engine.learn_form()?;
        engine.limits.flash_attention = engine.form.as_ref().and_then(Form::has_flash_attention).unwrap_or(false);
        engine.saved_form = model.saved_form(options.kv_type, &engine.limits);
        Ok(engine)
    }

    /// Computes one token and reads from its state how states are laid out.
    fn learn_form(&mut self) -> Result<Option<Form>, EngineError> {
        let seq = SeqId(0);
        let probe = crate::engine::BatchToken { token: Token(0), pos: 0, seq, wants_logits: false };
        let (decoded, errors) = with_errors(|| self.decode(&Batch { tokens: vec![probe] }));
        decoded.map_err(|_| EngineError::Context(reason("the model cannot compute a token", &errors)))?;
        let state = self.state_of(seq)?;
        self.remove(seq, 0)?;
        Ok(Form::learn(&state, self.limits.memory == Memory::Rewindable))
    }

    pub(super) fn check_seq(&self, seq: SeqId) -> Result<usize, EngineError> {
        let seq_idx = usize::from(seq.0);
        match seq_idx < self.limits.n_seq_max {
            true => Ok(seq_idx),
            false => Err(refused(seq, format!("there are only {} sequences", self.limits.n_seq_max))),
        }
    }

    /// Takes `seq` and its guard off its cells from `from` on, without a look at the span.
    pub(super) fn take_off(&mut self, seq: SeqId, from: usize) -> Result<(), EngineError> {
        // Positions have 32 bits; no sequence reaches that far.
        let from = i32::try_from(from).unwrap_or(i32::MAX);
        match self.owners(seq).all(|id| self.context.take_off(id, from, END)) {
            true => Ok(()),
            false => Err(refused(seq, format!("the model's memory cannot be cut at position {from}"))),
        }
    }

    /// Takes the id off all its cells.
    pub(super) fn clear(&mut self, id: i32) -> Result<(), EngineError> {
        match self.context.take_off(id, 0, END) {
            true => Ok(()),
            false => Err(EngineError::Context(format!("id {id} cannot be cleared"))),
        }
    }

    /// Makes the id `to` an owner of the cells that the id `from` has in `range`. Ids and range have been checked.
    pub(super) fn lend(&mut self, from: i32, to: i32, range: &Range<usize>) {
        self.context.lend(from, to, range.start as i32, range.end as i32);
    }

    /// Makes `dst` and its guard owners of the cells that the id `from` has in `range`.
    pub(super) fn hand_over(&mut self, from: i32, dst: SeqId, range: &Range<usize>) {
        self.owners(dst).for_each(|id| self.lend(from, id, range));
    }

    /// The id of `seq`, and that of its guard.
    fn owners(&self, seq: SeqId) -> impl Iterator<Item = i32> + use<> {
        std::iter::once(i32::from(seq.0)).chain(self.ids.guard(seq))
    }

    /// A sequence can be cut at `at` only if its windowed layers still hold all that the next token would see.
    pub(super) fn check_window(&self, seq: SeqId, at: usize) -> Result<(), EngineError> {
        let Some(window) = self.window else { return Ok(()) };
        let held = self.told_span(i32::from(seq.0));
        match at >= held.end || held.start <= at.saturating_sub(window) {
            true => Ok(()),
            false => Err(refused(seq, format!("holds {held:?} in its windowed layers and cannot be cut at {at}"))),
        }
    }

    /// What the id holds as llama.cpp tells it.
    pub(super) fn told_span(&self, id: i32) -> Range<usize> {
        let (first, last) = self.context.ends(id);
        match (usize::try_from(first), usize::try_from(last)) {
            (Ok(first), Ok(last)) => first..last + 1,
            _ => 0..0,
        }
    }

    /// The spans are bookkeeping beside the truth; debug builds compare after every change.
    pub(super) fn debug_check(&self, seq: SeqId) {
        if self.limits.memory == Memory::Rewindable {
            for id in self.owners(seq) {
                debug_assert_eq!(self.spans[usize::from(seq.0)], self.told_span(id), "the span of id {id}");
            }
        }
    }

    /// Checks the batch and fills llama.cpp's; gives the span that each sequence in it will have.
    fn fill(&mut self, batch: &Batch) -> Result<Vec<(usize, Range<usize>)>, DecodeError> {
        let n_tokens = batch.tokens.len();
        if n_tokens == 0 || n_tokens > self.limits.n_batch {
            return Err(DecodeError::Failed(format!(
                "a batch of {n_tokens} tokens, allowed are 1 to {}",
                self.limits.n_batch
            )));
        }
        let mut grown: Vec<Option<Range<usize>>> = vec![None; self.limits.n_seq_max];
        self.batch.clear();
        for (row, token) in batch.tokens.iter().enumerate() {
            let failed = |reason: String| DecodeError::Failed(format!("row {row} of the batch: {reason}"));
            let seq_idx = self.check_seq(token.seq).map_err(|error| failed(error.to_string()))?;
            if !(0..self.n_vocab).contains(&token.token.0) {
                return Err(failed(format!("token {}, the vocabulary has {}", token.token.0, self.n_vocab)));
            }
            let span = grown[seq_idx].get_or_insert_with(|| self.spans[seq_idx].clone());
            if token.pos != span.end {
                return Err(failed(format!(
                    "position {} of sequence {seq_idx}, which goes on at {}",
                    token.pos, span.end
                )));
            }
            if token.pos >= self.limits.n_cells {
                return Err(DecodeError::NoFreeCells { n_tokens });
            }
            span.end += 1;
            self.batch.add(token.token.0, token.pos as i32, i32::from(token.seq.0), token.wants_logits);
        }
        Ok(grown.into_iter().enumerate().filter_map(|(seq_idx, span)| Some((seq_idx, span?))).collect())
    }
}

impl Engine for LlamaEngine<'_> {
    type Sampler = Sampler;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn sampler(&self, sampling: &Sampling, rules: &AnswerRules, prompt: &[Token]) -> Result<Sampler, EngineError> {
        let LoadedModel { weights, vocab, .. } = self.model;
        Sampler::new(weights, vocab, self.limits.n_cells, sampling, rules, prompt)
    }

    /// llama.cpp builds its graph anew if they are others than before, and only then.
    fn set_adapters(&mut self, adapters: AdapterSet) -> Result<(), EngineError> {
        check_adapters(adapters, self.model.adapters.len())?;
        let parts = adapters.parts().map(|(index, scale)| (self.model.adapters[index], scale.get()));
        let set = self.context.set_adapters(&parts.collect::<Vec<_>>());
        set.map_err(|code| EngineError::Context(format!("the adapters {adapters:?} cannot be set: {code}")))
    }

    /// llama_decode's results: 0 done; 1 no free cells, nothing was changed; 2 aborted (no callback is set, so it does
    /// not occur); below 0 a refused batch or a failed computation, which may have left cells behind.
    fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        self.rows.clear();
        let grown = self.fill(batch)?;
        let (decoded, errors) = with_errors(|| self.context.decode(&self.batch));
        match decoded {
            Ok(()) => {}
            Err(Undone::NoFreeCells) => return Err(DecodeError::NoFreeCells { n_tokens: batch.tokens.len() }),
            Err(Undone::Failed(code)) => {
                return Err(DecodeError::Failed(reason(
                    &format!("llama.cpp cannot compute the batch: {code}"),
                    &errors,
                )));
            }
        }
        for (seq_idx, span) in grown {
            let seq = SeqId(seq_idx as u16);
            if let Some(guard) = self.ids.guard(seq) {
                let computed = self.spans[seq_idx].end..span.end;
                self.lend(seq_idx as i32, guard, &computed);
            }
            self.spans[seq_idx] = span;
            self.debug_check(seq);
        }
        self.rows.extend(batch.tokens.iter().map(|token| token.wants_logits));
        Ok(())
    }

    fn sample(&mut self, row: usize, sampler: &mut Sampler) -> Result<Token, EngineError> {
        let logits = self.logits(row)?;
        // A chain that sorts candidates has no defined order for NaN.
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(EngineError::Sampling("the model gave a logit that is no number".into()));
        }
        sampler.sample(logits, &self.model.vocab)
    }

    /// `dst` must be empty, or end where `range` begins: a sequence has no holes.
    fn share(&mut self, src: SeqId, dst: SeqId, range: Range<usize>) -> Result<(), EngineError> {
        let (src_idx, dst_idx) = (self.check_seq(src)?, self.check_seq(dst)?);
        let (src_span, dst_span) = (self.spans[src_idx].clone(), self.spans[dst_idx].clone());
        if self.limits.memory == Memory::Opaque {
            return Err(refused(src, "this model shares whole sequences only, by copy".into()));
        }
        if src == dst || range.is_empty() {
            return Err(refused(dst, format!("cannot take {range:?} from sequence {}", src.0)));
        }
        if range.start < src_span.start || range.end > src_span.end {
            return Err(refused(src, format!("holds {src_span:?}, not {range:?}")));
        }
        if !dst_span.is_empty() && dst_span.end != range.start {
            return Err(refused(dst, format!("holds {dst_span:?} and cannot go on with {range:?}")));
        }
        self.check_window(src, range.end)?;
        // An owner must not be added to a cell twice: remains of a failed batch must be gone.
        self.take_off(dst, range.start)?;
        self.hand_over(i32::from(src.0), dst, &range);
        let start = if dst_span.is_empty() { range.start } else { dst_span.start };
        self.spans[dst_idx] = start..range.end;
        self.debug_check(dst);
        Ok(())
    }

    /// On opaque memories `from` must be 0, or lie at or behind the end.
    fn remove(&mut self, seq: SeqId, from: usize) -> Result<(), EngineError> {
        let seq_idx = self.check_seq(seq)?;
        let span = self.spans[seq_idx].clone();
        let keeps_some = !span.is_empty() && from > span.start;
        if self.limits.memory == Memory::Opaque && keeps_some && from < span.end {
            return Err(refused(
                seq,
                format!("this model's sequences can be removed as a whole only, not from {from}"),
            ));
        }
        if keeps_some {
            self.check_window(seq, from)?;
        }
        self.take_off(seq, from)?;
        self.spans[seq_idx] = if keeps_some { span.start..span.end.min(from) } else { 0..0 };
        self.debug_check(seq);
        Ok(())
    }

    fn adopt(&mut self, src: SeqId, dst: SeqId, range: Range<usize>) -> Result<(), EngineError> {
        let (src_idx, dst_idx) = (self.check_seq(src)?, self.check_seq(dst)?);
        let (src_span, dst_span) = (self.spans[src_idx].clone(), self.spans[dst_idx].clone());
        if self.limits.memory == Memory::Opaque {
            return Err(refused(src, "this model shares whole sequences only, by copy".into()));
        }
        let is_within = |span: &Range<usize>| span.start <= range.start && range.end <= span.end;
        if src == dst || range.is_empty() || !is_within(&src_span) || !is_within(&dst_span) {
            return Err(refused(dst, format!("cannot give up {range:?} of {dst_span:?} for that of {src_span:?}")));
        }
        self.check_window(src, range.end)?;
        if !self.owners(dst).all(|id| self.context.take_off(id, range.start as i32, range.end as i32)) {
            return Err(refused(dst, format!("cannot give up {range:?}")));
        }
        self.hand_over(i32::from(src.0), dst, &range);
        self.debug_check(dst);
        Ok(())
    }

    /// Not for memories that can be cut: those share, and a windowed layer would give its last window alone.
    fn copy_whole(&mut self, src: SeqId, dst: SeqId) -> Result<(), EngineError> {
        let (src_idx, dst_idx) = (self.check_seq(src)?, self.check_seq(dst)?);
        let span = self.spans[src_idx].clone();
        if self.limits.memory == Memory::Rewindable {
            return Err(refused(src, "this model's sequences are shared, not copied".into()));
        }
        if span.is_empty() {
            return Err(refused(src, "holds nothing to copy".into()));
        }
        if !self.spans[dst_idx].is_empty() {
            return Err(refused(dst, format!("holds {:?} and cannot take a copy", self.spans[dst_idx])));
        }
        self.take_off(dst, 0)?;
        let state = self.state_of(src)?;
        // SAFETY: the bytes are this context's own, of a moment ago.
        let (is_copied, errors) =
            with_errors(|| unsafe { self.context.set_state(i32::from(dst.0), Part::All, &state) });
        // A restored state can be true and short, so its end is compared; windowed models drop what no token sees.
        if !is_copied || self.told_span(i32::from(dst.0)).end != span.end {
            self.take_off(dst, 0)?;
            return Err(refused(dst, reason(&format!("cannot take a copy of sequence {}", src.0), &errors)));
        }
        self.spans[dst_idx] = span;
        Ok(())
    }

    fn save(&mut self, seq: SeqId, range: Range<usize>) -> Result<Vec<u8>, EngineError> {
        self.save_piece(seq, range)
    }

    fn restore(&mut self, dst: SeqId, range: Range<usize>, bytes: &[u8]) -> Result<(), EngineError> {
        self.restore_piece(dst, range, bytes)
    }

    fn checkpoint(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError> {
        self.checkpoint_of(seq)
    }

    fn rewind(&mut self, seq: SeqId, to: usize, checkpoint: &[u8]) -> Result<(), EngineError> {
        self.rewind_to(seq, to, checkpoint)
    }

    fn saved_form(&self) -> String {
        self.saved_form.clone()
    }

    fn held(&self, seq: SeqId) -> Option<Range<usize>> {
        self.check_seq(seq).ok()?;
        Some(self.told_span(i32::from(seq.0))).filter(|span| !span.is_empty())
    }

    fn state(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError> {
        self.state_of(seq)
    }

    fn logits(&self, row: usize) -> Result<&[f32], EngineError> {
        match self.rows.get(row) {
            Some(true) => {
                let logits = self.context.logits(row);
                logits.ok_or_else(|| EngineError::Sampling(format!("llama.cpp has no logits of row {row}")))
            }
            Some(false) => Err(EngineError::Sampling(format!("row {row} of the batch asked for no logits"))),
            None => Err(EngineError::Sampling(format!("row {row}, the last batch has {}", self.rows.len()))),
        }
    }
}

fn cache_type(kv_type: KvType) -> sys::ggml_type {
    match kv_type {
        KvType::F32 => sys::GGML_TYPE_F32,
        KvType::F16 => sys::GGML_TYPE_F16,
        KvType::Bf16 => sys::GGML_TYPE_BF16,
        KvType::Q8_0 => sys::GGML_TYPE_Q8_0,
        KvType::Q4_0 => sys::GGML_TYPE_Q4_0,
    }
}

fn check_number(what: &str, number: usize, accepted: std::ops::RangeInclusive<usize>) -> Result<(), EngineError> {
    match accepted.contains(&number) {
        true => Ok(()),
        false => {
            let (from, to) = accepted.into_inner();
            Err(EngineError::Context(format!("{number} {what}: must be {from} to {to}")))
        }
    }
}

pub(super) fn refused(seq: SeqId, reason: String) -> EngineError {
    EngineError::Sequence { seq: seq.0, reason }
}

/// What failed, and llama.cpp's own last words on it.
pub(super) fn reason(what: &str, errors: &[String]) -> String {
    match errors.last() {
        Some(error) => format!("{what} ({error})"),
        None => what.to_owned(),
    }
}
