//! How cells become bytes and bytes cells: `save` and `restore` of [`LlamaEngine`].
//!
//! A range of a sequence is lent to the *scratch* id, whose whole state is then the range alone; a restored piece arrives under
//! the scratch id and is given to its sequence when its positions are right. So a restore that goes wrong touches nobody. Where
//! sequences cannot be cut there is no scratch: a whole goes out of and into an id of its own. `state_seq_load_file` is never
//! called, it aborts on a truncated file; `ON_DEVICE` neither.
//!
//! A *checkpoint* is the recurrent part of a sequence at its end (`PARTIAL_ONLY`). With it a sequence that attends and recurs is
//! cut where the checkpoint was taken: the state is put back, then the cells behind it go.

use std::ops::Range;

use super::backend::with_errors;
use super::context::{LlamaEngine, reason, refused};
use super::form::{Form, Held};
use super::raw::Part;
use crate::engine::{EngineError, Memory, MemoryClass, SeqId};

impl LlamaEngine<'_> {
    pub(super) fn save_piece(&mut self, seq: SeqId, range: Range<usize>) -> Result<Vec<u8>, EngineError> {
        let span = self.spans[self.check_seq(seq)?].clone();
        let is_held = match self.limits.memory {
            Memory::Rewindable => span.start <= range.start && range.end <= span.end,
            Memory::Opaque => range.start == 0 && range.end == span.end,
        };
        if range.is_empty() || range.len() > self.limits.n_piece_max || !is_held {
            return Err(refused(seq, format!("holds {span:?}, {range:?} of it cannot be saved")));
        }
        let form = self.form.clone().ok_or_else(|| refused(seq, UNKNOWN_FORM.into()))?;
        let bytes = match self.ids.scratch() {
            Some(scratch) => {
                self.check_window(seq, range.end)?;
                self.clear(scratch)?;
                self.lend(i32::from(seq.0), scratch, &range);
                let bytes = self.bytes_of(seq, scratch);
                self.clear(scratch)?;
                bytes
            }
            None => self.bytes_of(seq, i32::from(seq.0)),
        };
        let mut bytes = bytes?;
        // What cannot be restored is not worth being kept: a windowed layer that lost cells shows here.
        let held = form
            .check(&bytes, &range)
            .map_err(|problem| refused(seq, format!("{range:?} was saved, but {problem}")))?;
        held.forget_names(&mut bytes);
        Ok(bytes)
    }

    pub(super) fn restore_piece(&mut self, dst: SeqId, range: Range<usize>, bytes: &[u8]) -> Result<(), EngineError> {
        let dst_idx = self.check_seq(dst)?;
        let span = self.spans[dst_idx].clone();
        if range.is_empty() || range.len() > self.limits.n_piece_max || range.start != span.end {
            return Err(refused(dst, format!("holds {span:?} and cannot go on with {range:?}")));
        }
        if range.end > self.limits.n_cells {
            return Err(refused(dst, format!("{range:?} is beyond the context of {} cells", self.limits.n_cells)));
        }
        let form = self.form.as_ref().ok_or_else(|| refused(dst, UNKNOWN_FORM.into()))?;
        let held = form.check(bytes, &range).map_err(|problem| refused(dst, format!("{range:?}: {problem}")))?;
        // Remains of a failed batch would be owned twice.
        self.take_off(dst, range.start)?;
        match self.ids.scratch() {
            Some(scratch) => {
                self.clear(scratch)?;
                let put = self.put(dst, scratch, &held, bytes).map(|()| self.hand_over(scratch, dst, &range));
                self.clear(scratch)?;
                put?;
            }
            None => self.put(dst, i32::from(dst.0), &held, bytes)?,
        }
        self.spans[dst_idx] = span.start..range.end;
        self.debug_check(dst);
        Ok(())
    }

    pub(super) fn checkpoint_of(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError> {
        let span = self.spans[self.check_seq(seq)?].clone();
        let form = self.recurrent_form(seq)?;
        if span.is_empty() {
            return Err(refused(seq, "holds nothing to go back to".into()));
        }
        let mut bytes = self.bytes_with(seq, i32::from(seq.0), Part::Recurrent)?;
        let held = form
            .check(&bytes, &(span.end - 1..span.end))
            .map_err(|problem| refused(seq, format!("its state at {} was saved, but {problem}", span.end)))?;
        held.forget_names(&mut bytes);
        Ok(bytes)
    }

    pub(super) fn rewind_to(&mut self, seq: SeqId, to: usize, checkpoint: &[u8]) -> Result<(), EngineError> {
        let seq_idx = self.check_seq(seq)?;
        let span = self.spans[seq_idx].clone();
        let form = self.recurrent_form(seq)?;
        if to <= span.start || to > span.end {
            return Err(refused(seq, format!("holds {span:?} and cannot go back to {to}")));
        }
        form.check(checkpoint, &(to - 1..to)).map_err(|problem| refused(seq, format!("back to {to}: {problem}")))?;
        let id = i32::from(seq.0);
        // SAFETY: as in `put`; the form is that of the recurrent part alone, which is all that llama.cpp reads of this part.
        let (is_put, errors) = with_errors(|| unsafe { self.context.set_state(id, Part::Recurrent, checkpoint) });
        // The state stands at `to` now, so that what attends can be cut there, too; without the state that would be refused.
        let is_cut = is_put && self.take_off(seq, to).is_ok();
        if !is_cut || self.told_span(id).end != to {
            self.clear(id)?;
            self.spans[seq_idx] = 0..0;
            return Err(refused(seq, reason(&format!("cannot go back to {to}"), &errors[..errors.len().min(1)])));
        }
        self.spans[seq_idx] = span.start..to;
        Ok(())
    }

    fn recurrent_form(&self, seq: SeqId) -> Result<Form, EngineError> {
        let form = self.form.as_ref().filter(|_| self.limits.memory_class == MemoryClass::Checkpointed);
        form.and_then(Form::recurrent).ok_or_else(|| refused(seq, "this model has no state of its end alone".into()))
    }

    /// The bytes of all that the id `of` holds, for `seq`.
    fn bytes_of(&mut self, seq: SeqId, of: i32) -> Result<Vec<u8>, EngineError> {
        self.bytes_with(seq, of, Part::All)
    }

    fn bytes_with(&mut self, seq: SeqId, of: i32, part: Part) -> Result<Vec<u8>, EngineError> {
        self.context.state(of, part).map_err(|problem| refused(seq, problem))
    }

    pub(super) fn state_of(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError> {
        self.check_seq(seq)?;
        self.bytes_of(seq, i32::from(seq.0))
    }

    /// Puts checked bytes into the empty id `into`; on an error it is empty again.
    fn put(&mut self, dst: SeqId, into: i32, held: &Held, bytes: &[u8]) -> Result<(), EngineError> {
        // SAFETY: the bytes have been walked with the form of this very context: all words that llama.cpp reads are those that
        // it would write, and it reads no more than there are. The flags are not those of a copy on the device.
        let put = || unsafe { self.context.set_state(into, Part::All, bytes) };
        let (is_put, errors) = with_errors(put);
        // A restored state can be called a success and be short.
        let told = self.told_span(into);
        if is_put && told == held.span {
            return Ok(());
        }
        self.clear(into)?;
        let what =
            if is_put { format!("{told:?} was restored, not {:?}", held.span) } else { "cannot be restored".into() };
        // The first error names the cause, those after it say that there was one.
        Err(refused(dst, reason(&what, &errors[..errors.len().min(1)])))
    }
}

const UNKNOWN_FORM: &str = "hob does not know how this model's memory is laid out, so it is not saved";
