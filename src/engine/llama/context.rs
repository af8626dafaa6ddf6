//! Defines `LlamaEngine`: llama.cpp's context with its cells, behind checks.
//!
//! A *span* is the range of positions a sequence holds. The engine keeps every span in step with what llama.cpp does, so
//! that a wrong id, position or range is an error here; there it would abort the process or, worse, pass: a sequence
//! added to a cell twice, a partial removal on a model that cannot do it. It decides nothing: when to share or evict is
//! the scheduler's.
//!
//! Threads: decoding and prefill use `threads` of `ContextOptions`; which number is best beside other work, and why
//! `GOMP_SPINCOUNT` must be set before the first call of llama.cpp, stands where `main` sets it.

use std::num::NonZeroU32;
use std::ops::Range;

use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::{DecodeError as LlamaDecodeError, LlamaStateSeqFlags};
use llama_cpp_sys_2 as sys;

use super::LoadedModel;
use super::backend::{backend, with_errors};
use super::sampler::Sampler;
use crate::engine::{Batch, ContextOptions, DecodeError, Engine, EngineError, KvType, Limits, Memory, SeqId};
use crate::request::{Sampling, Token};

/// The one context of a loaded model. Not `Sync`: it lives on the scheduler's thread.
pub struct LlamaEngine<'a> {
    context: LlamaContext<'a>,
    batch: LlamaBatch<'static>,
    limits: Limits,
    n_vocab: i32,
    /// By sequence id; an empty range holds nothing.
    spans: Vec<Range<usize>>,
    /// Whether each row of the last successful batch has logits.
    rows: Vec<bool>,
}

/// LLAMA_MAX_SEQ of llama.cpp, a compile-time constant there.
const N_SEQ_MAX: usize = 256;

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
        check_number("sequences", options.n_seq_max, 1..=N_SEQ_MAX)?;
        // llama.cpp keeps an output row for each sequence and asserts that a batch has as many tokens.
        check_number("tokens in a batch", n_batch, options.n_seq_max..=N_CELLS_MAX)?;

        let kv_type = cache_type(options.kv_type);
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(options.n_cells as u32))
            .with_n_batch(n_batch as u32)
            // One physical batch for each logical one: the split of a prompt is then the scheduler's alone.
            .with_n_ubatch(n_batch as u32)
            .with_n_seq_max(options.n_seq_max as u32)
            // Sharing cells between sequences needs one pool.
            .with_kv_unified(true)
            // Windowed layers keep all cells, so that they cannot run out before the others do.
            .with_swa_full(true)
            .with_flash_attention_policy(flash_attention)
            .with_type_k(kv_type)
            .with_type_v(kv_type)
            .with_n_threads(options.threads.decode as i32)
            .with_n_threads_batch(options.threads.prefill as i32);
        let (context, errors) = with_errors(|| model.weights.new_context(backend(), params));
        let context = context.map_err(|_| EngineError::Context(reason("the context cannot be made", &errors)))?;

        let limits = Limits {
            n_cells: context.n_ctx() as usize,
            n_seq_max: options.n_seq_max,
            n_batch: context.n_batch() as usize,
            memory: model.memory,
            flash_attention: false,
            swa_full: true,
            n_piece_max: match model.memory {
                Memory::Rewindable => N_PIECE_MAX,
                Memory::Opaque => context.n_ctx() as usize,
            },
        };
        let mut engine = LlamaEngine {
            context,
            batch: LlamaBatch::new(limits.n_batch, 1),
            limits,
            n_vocab: model.weights.n_vocab(),
            spans: vec![0..0; limits.n_seq_max],
            rows: Vec::new(),
        };
        engine.limits.flash_attention = engine.uses_flash_attention()?;
        Ok(engine)
    }

    /// Computes one token and reads from its state how V is stored: transposed without flash attention, else not.
    fn uses_flash_attention(&mut self) -> Result<bool, EngineError> {
        let seq = SeqId(0);
        let probe = crate::engine::BatchToken { token: Token(0), pos: 0, seq, wants_logits: false };
        let (decoded, errors) = with_errors(|| self.decode(&Batch { tokens: vec![probe] }));
        decoded.map_err(|_| EngineError::Context(reason("the model cannot compute a token", &errors)))?;
        let state = self.state(seq)?;
        self.remove(seq, 0)?;
        // Magic and sequence, then: streams, cells; position, owners, owner of the one cell; whether V is transposed.
        let word =
            |index: usize| state.get(index * 4..index * 4 + 4).map(|bytes| bytes.try_into().map(u32::from_le_bytes));
        let words: Vec<u32> = (2..8).map_while(|index| word(index)?.ok()).collect();
        match words[..] {
            [1, 1, 0, 1, 0, v_is_transposed @ 0..=1] => Ok(v_is_transposed == 0),
            // Memories without attention begin otherwise.
            _ => Ok(false),
        }
    }

    fn check_seq(&self, seq: SeqId) -> Result<usize, EngineError> {
        let seq_idx = usize::from(seq.0);
        match seq_idx < self.limits.n_seq_max {
            true => Ok(seq_idx),
            false => Err(refused(seq, format!("there are only {} sequences", self.limits.n_seq_max))),
        }
    }

    /// Takes `seq` off its cells from `from` on, without a look at the span.
    fn take_off(&mut self, seq: SeqId, from: usize) -> Result<(), EngineError> {
        // The binding refuses a start beyond 32 bits; no sequence reaches that far.
        let from = u32::try_from(from).unwrap_or(i32::MAX as u32).min(i32::MAX as u32);
        match self.context.clear_kv_cache_seq(Some(u32::from(seq.0)), Some(from), None) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(refused(seq, format!("the model's memory cannot be cut at position {from}"))),
        }
    }

    /// The span as llama.cpp tells it.
    fn true_span(&self, seq: SeqId) -> Range<usize> {
        let seq = i32::from(seq.0);
        let (first, last) = (self.context.kv_cache_seq_pos_min(seq), self.context.kv_cache_seq_pos_max(seq));
        match (usize::try_from(first), usize::try_from(last)) {
            (Ok(first), Ok(last)) => first..last + 1,
            _ => 0..0,
        }
    }

    /// The spans are bookkeeping beside the truth; debug builds compare after every change.
    fn debug_check(&self, seq: SeqId) {
        if self.limits.memory == Memory::Rewindable {
            debug_assert_eq!(self.spans[usize::from(seq.0)], self.true_span(seq), "the span of sequence {}", seq.0);
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
            self.batch
                .add(LlamaToken(token.token.0), token.pos as i32, &[i32::from(token.seq.0)], token.wants_logits)
                .expect("the batch was allocated for n_batch tokens");
        }
        Ok(grown.into_iter().enumerate().filter_map(|(seq_idx, span)| Some((seq_idx, span?))).collect())
    }
}

impl Engine for LlamaEngine<'_> {
    type Sampler = Sampler;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn sampler(&self, sampling: &Sampling, prompt: &[Token]) -> Result<Sampler, EngineError> {
        Sampler::new(sampling, prompt, self.n_vocab)
    }

    /// llama_decode's results: 0 done; 1 no free cells, nothing was changed; 2 aborted (no callback is set, so it does
    /// not occur); below 0 a refused batch or a failed computation, which may have left cells behind.
    fn decode(&mut self, batch: &Batch) -> Result<(), DecodeError> {
        self.rows.clear();
        let grown = self.fill(batch)?;
        let (decoded, errors) = with_errors(|| self.context.decode(&mut self.batch));
        match decoded {
            Ok(()) => {}
            Err(LlamaDecodeError::NoKvCacheSlot) => {
                return Err(DecodeError::NoFreeCells { n_tokens: batch.tokens.len() });
            }
            Err(error) => return Err(DecodeError::Failed(reason(&error.to_string(), &errors))),
        }
        for (seq_idx, span) in grown {
            self.spans[seq_idx] = span;
            self.debug_check(SeqId(seq_idx as u16));
        }
        self.rows.extend(batch.tokens.iter().map(|token| token.wants_logits));
        Ok(())
    }

    fn sample(&mut self, row: usize, sampler: &mut Sampler) -> Result<Token, EngineError> {
        // A chain that sorts candidates has no defined order for NaN.
        if self.logits(row)?.iter().any(|logit| logit.is_nan()) {
            return Err(EngineError::Sampling("the model gave a logit that is no number".into()));
        }
        Ok(Token(sampler.chain.sample(&self.context, row as i32).0))
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
        // An owner added to a cell twice is counted twice: remains of a failed batch must be gone.
        self.take_off(dst, range.start)?;
        self.context
            .kv_cache_seq_cp(i32::from(src.0), i32::from(dst.0), Some(range.start as u32), Some(range.end as u32))
            .map_err(|error| refused(dst, error.to_string()))?;
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
        let (from, to) = (Some(range.start as u32), Some(range.end as u32));
        self.context
            .kv_cache_seq_rm(i32::from(dst.0), from, to)
            .and_then(|()| self.context.kv_cache_seq_cp(i32::from(src.0), i32::from(dst.0), from, to))
            .map_err(|error| refused(dst, error.to_string()))?;
        self.debug_check(dst);
        Ok(())
    }

    fn copy_whole(&mut self, src: SeqId, dst: SeqId) -> Result<(), EngineError> {
        let (src_idx, dst_idx) = (self.check_seq(src)?, self.check_seq(dst)?);
        let span = self.spans[src_idx].clone();
        if span.is_empty() {
            return Err(refused(src, "holds nothing to copy".into()));
        }
        if !self.spans[dst_idx].is_empty() {
            return Err(refused(dst, format!("holds {:?} and cannot take a copy", self.spans[dst_idx])));
        }
        self.take_off(dst, 0)?;
        let state = self.context.state_seq_get(i32::from(src.0), LlamaStateSeqFlags::empty());
        let (copied, errors) = with_errors(|| self.context.state_seq_set(&state.ok()?, i32::from(dst.0)).ok());
        // A restored state can be true and short, so its end is compared; windowed models drop what no token sees.
        if copied.is_none() || self.true_span(dst).end != span.end {
            self.take_off(dst, 0)?;
            return Err(refused(dst, reason(&format!("cannot take a copy of sequence {}", src.0), &errors)));
        }
        self.spans[dst_idx] = span;
        self.debug_check(dst);
        Ok(())
    }

    fn save(&mut self, seq: SeqId, range: Range<usize>) -> Result<Vec<u8>, EngineError> {
        Err(refused(seq, format!("{range:?} cannot be saved yet")))
    }

    fn restore(&mut self, dst: SeqId, range: Range<usize>, _bytes: &[u8]) -> Result<(), EngineError> {
        Err(refused(dst, format!("{range:?} cannot be restored yet")))
    }

    fn saved_form(&self) -> String {
        String::new()
    }

    fn held(&self, seq: SeqId) -> Option<Range<usize>> {
        self.check_seq(seq).ok()?;
        Some(self.true_span(seq)).filter(|span| !span.is_empty())
    }

    fn state(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError> {
        self.check_seq(seq)?;
        let (seq_id, flags) = (i32::from(seq.0), LlamaStateSeqFlags::empty());
        let mut bytes = vec![0; self.context.state_seq_get_size_ext(seq_id, flags)];
        // SAFETY: the buffer has the size that llama.cpp just gave for this sequence, and nothing happened in between.
        let n_bytes = unsafe { self.context.state_seq_get_data_ext(bytes.as_mut_ptr(), seq_id, flags) };
        match n_bytes == bytes.len() && n_bytes > 0 {
            true => Ok(bytes),
            false => Err(refused(seq, format!("its state has {} bytes, llama.cpp gave {n_bytes}", bytes.len()))),
        }
    }

    fn logits(&self, row: usize) -> Result<&[f32], EngineError> {
        match self.rows.get(row) {
            Some(true) => Ok(self.context.get_logits_ith(row as i32)),
            Some(false) => Err(EngineError::Sampling(format!("row {row} of the batch asked for no logits"))),
            None => Err(EngineError::Sampling(format!("row {row}, the last batch has {}", self.rows.len()))),
        }
    }
}

fn cache_type(kv_type: KvType) -> KvCacheType {
    match kv_type {
        KvType::F32 => KvCacheType::F32,
        KvType::F16 => KvCacheType::F16,
        KvType::Bf16 => KvCacheType::BF16,
        KvType::Q8_0 => KvCacheType::Q8_0,
        KvType::Q4_0 => KvCacheType::Q4_0,
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

fn refused(seq: SeqId, reason: String) -> EngineError {
    EngineError::Sequence { seq: seq.0, reason }
}

/// What failed, and llama.cpp's own last words on it.
pub(super) fn reason(what: &str, errors: &[String]) -> String {
    match errors.last() {
        Some(error) => format!("{what} ({error})"),
        None => what.to_owned(),
    }
}
