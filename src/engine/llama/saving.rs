//! How cells become bytes and bytes cells: `save` and `restore` of [`LlamaEngine`].
//!
//! A range of a sequence is lent to the *scratch* id, whose whole state is then the range alone; a restored piece arrives under
//! the scratch id and is given to its sequence when its positions are right. So a restore that goes wrong touches nobody. Where
//! sequences cannot be cut there is no scratch: a whole goes out of and into an id of its own. `state_seq_load_file` is never
//! called, it aborts on a truncated file; `ON_DEVICE` neither.

use std::ops::Range;

use llama_cpp_2::LlamaStateSeqFlags;

use super::backend::with_errors;
use super::context::{LlamaEngine, reason, refused};
use super::form::Held;
use crate::engine::{EngineError, Memory, SeqId};

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
                self.lend(i32::from(seq.0), scratch, &range)?;
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
                let put = self.put(dst, scratch, &held, bytes).and_then(|()| self.hand_over(scratch, dst, &range));
                self.clear(scratch)?;
                put?;
            }
            None => self.put(dst, i32::from(dst.0), &held, bytes)?,
        }
        self.spans[dst_idx] = span.start..range.end;
        self.debug_check(dst);
        Ok(())
    }

    /// The bytes of all that the id `of` holds, for `seq`.
    fn bytes_of(&mut self, seq: SeqId, of: i32) -> Result<Vec<u8>, EngineError> {
        let flags = LlamaStateSeqFlags::empty();
        let mut bytes = vec![0; self.context.state_seq_get_size_ext(of, flags)];
        // SAFETY: the buffer has the size that llama.cpp just gave for this sequence, and nothing happened in between.
        let n_bytes = unsafe { self.context.state_seq_get_data_ext(bytes.as_mut_ptr(), of, flags) };
        match n_bytes == bytes.len() && n_bytes > 0 {
            true => Ok(bytes),
            false => Err(refused(seq, format!("its state has {} bytes, llama.cpp gave {n_bytes}", bytes.len()))),
        }
    }

    pub(super) fn state_of(&mut self, seq: SeqId) -> Result<Vec<u8>, EngineError> {
        self.check_seq(seq)?;
        self.bytes_of(seq, i32::from(seq.0))
    }

    /// Puts checked bytes into the empty id `into`; on an error it is empty again.
    fn put(&mut self, dst: SeqId, into: i32, held: &Held, bytes: &[u8]) -> Result<(), EngineError> {
        // SAFETY: the bytes have been walked with the form of this very context: all words that llama.cpp reads are those that
        // it would write, and it reads no more than there are. The flags are not those of a copy on the device.
        let put = || unsafe { self.context.state_seq_set_data_ext(bytes, into, LlamaStateSeqFlags::empty()) };
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
