//! Defines `Context` and `Batch`: llama.cpp's context, its batch and its adapters, held by their pointers.
//!
//! llama-cpp-2's own context hides its pointer and lets one adapter count at a time; a set may hold several. So it is made
//! here, through the sys crate, and this file with `backend` and the C++ neighbours is all that calls it. Nothing is checked here
//! but what would be unsound: ids, positions and bytes are `context`'s and `saving`'s to check.

use std::ffi::CString;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;

/// A part of a sequence's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    All,
    /// What goes forward only, without the layers that attend.
    Recurrent,
}

impl Part {
    fn flags(self) -> sys::llama_state_seq_flags {
        match self {
            Part::All => 0,
            // LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY, which is a macro.
            Part::Recurrent => 1,
        }
    }
}

/// What `Context::decode` can say beside that it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Undone {
    /// Nothing was changed.
    NoFreeCells,
    /// llama.cpp's number for it.
    Failed(i32),
}

/// A context of a model that outlives it.
pub(super) struct Context<'m> {
    pointer: NonNull<sys::llama_context>,
    n_vocab: usize,
    model: PhantomData<&'m LlamaModel>,
}

impl<'m> Context<'m> {
    /// `None`: the log says why.
    pub(super) fn open(model: &'m LlamaModel, params: sys::llama_context_params) -> Option<Context<'m>> {
        // SAFETY: the model is there, and the params hold no pointers but those of the defaults, which are null.
        let pointer = unsafe { sys::llama_init_from_model(model_pointer(model), params) };
        let n_vocab = model.n_vocab() as usize;
        Some(Context { pointer: NonNull::new(pointer)?, n_vocab, model: PhantomData })
    }

    pub(super) fn n_cells(&self) -> usize {
        // SAFETY: the context is alive.
        unsafe { sys::llama_n_ctx(self.pointer.as_ptr()) as usize }
    }

    pub(super) fn decode(&mut self, batch: &Batch) -> Result<(), Undone> {
        // SAFETY: the batch's arrays are as long as it says.
        match unsafe { sys::llama_decode(self.pointer.as_ptr(), batch.inner) } {
            0 => Ok(()),
            1 => Err(Undone::NoFreeCells),
            other => Err(Undone::Failed(other)),
        }
    }

    /// Logits of `row` of the last batch, which must have asked for them; `None`: llama.cpp has none.
    pub(super) fn logits(&self, row: usize) -> Option<&[f32]> {
        // SAFETY: a row that is not there gives null, and one that is has a logit for each token of the vocabulary. They stay until
        // the context is changed, for which it has to be borrowed mutably; that this waits for a running computation is no change.
        let logits = NonNull::new(unsafe { sys::llama_get_logits_ith(self.pointer.as_ptr(), row as i32) })?;
        Some(unsafe { std::slice::from_raw_parts(logits.as_ptr(), self.n_vocab) })
    }

    /// Takes the id off its cells from position `from` up to `to` (−1: its end). `false`: this memory cannot be cut there.
    pub(super) fn take_off(&mut self, id: i32, from: i32, to: i32) -> bool {
        // SAFETY: the context is alive; the caller has checked the id, on which llama.cpp would abort.
        unsafe { sys::llama_memory_seq_rm(self.memory(), id, from, to) }
    }

    /// Makes `to` an owner of the cells that `from` has at the positions `start..end`.
    pub(super) fn lend(&mut self, from: i32, to: i32, start: i32, end: i32) {
        // SAFETY: as in `take_off`.
        unsafe { sys::llama_memory_seq_cp(self.memory(), from, to, start, end) }
    }

    /// First and last position of the id; −1: it has none.
    pub(super) fn ends(&self, id: i32) -> (i32, i32) {
        let memory = self.memory();
        // SAFETY: as in `take_off`; nothing is changed.
        unsafe { (sys::llama_memory_seq_pos_min(memory, id), sys::llama_memory_seq_pos_max(memory, id)) }
    }

    /// The bytes of a part of what the id holds; `Err`: llama.cpp gave another number than it had told.
    pub(super) fn state(&mut self, id: i32, part: Part) -> Result<Vec<u8>, String> {
        let (context, flags) = (self.pointer.as_ptr(), part.flags());
        // SAFETY: the buffer has the size that llama.cpp just gave for this id, which it is told and does not exceed.
        let (bytes, n_bytes) = unsafe {
            let mut bytes = vec![0; sys::llama_state_seq_get_size_ext(context, id, flags)];
            let n_bytes = sys::llama_state_seq_get_data_ext(context, bytes.as_mut_ptr(), bytes.len(), id, flags);
            (bytes, n_bytes)
        };
        match n_bytes == bytes.len() && n_bytes > 0 {
            true => Ok(bytes),
            false => Err(format!("its state has {} bytes, llama.cpp gave {n_bytes}", bytes.len())),
        }
    }

    /// Puts bytes into the id; whether llama.cpp took all of them.
    ///
    /// # Safety
    ///
    /// `state` gave them of this very context, or they have been walked with its form: all words that llama.cpp reads are those
    /// that it would write.
    pub(super) unsafe fn set_state(&mut self, id: i32, part: Part, bytes: &[u8]) -> bool {
        // SAFETY: the caller's promise; llama.cpp reads no more bytes than it is told there are.
        let n_read = unsafe {
            sys::llama_state_seq_set_data_ext(self.pointer.as_ptr(), bytes.as_ptr(), bytes.len(), id, part.flags())
        };
        n_read == bytes.len()
    }

    /// What the next batches are computed under: adapters of this context's model.
    pub(super) fn set_adapters(&mut self, adapters: &[(Adapter, f32)]) -> Result<(), i32> {
        let (mut pointers, mut scales): (Vec<_>, Vec<f32>) =
            adapters.iter().map(|(adapter, scale)| (adapter.0.as_ptr(), *scale)).unzip();
        // SAFETY: both arrays are as long as is said, and are read during the call only. An adapter lives as long as its model,
        // which outlives this context.
        let result = unsafe {
            let (n, context) = (pointers.len(), self.pointer.as_ptr());
            sys::llama_set_adapters_lora(context, pointers.as_mut_ptr(), n, scales.as_mut_ptr())
        };
        if result == 0 { Ok(()) } else { Err(result) }
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive, and so is its memory as long.
        unsafe { sys::llama_get_memory(self.pointer.as_ptr()) }
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: it was made here, and nobody has the pointer any more.
        unsafe { sys::llama_free(self.pointer.as_ptr()) }
    }
}

/// Room for so many tokens of one `decode`, each of one sequence.
pub(super) struct Batch {
    inner: sys::llama_batch,
    n_max: usize,
}

impl Batch {
    pub(super) fn of(n_max: usize) -> Batch {
        // SAFETY: it allocates; no embeddings, one id a token.
        Batch { inner: unsafe { sys::llama_batch_init(n_max as i32, 0, 1) }, n_max }
    }

    pub(super) fn clear(&mut self) {
        self.inner.n_tokens = 0;
    }

    /// Panics if there is no room left.
    pub(super) fn add(&mut self, token: i32, pos: i32, id: i32, wants_logits: bool) {
        let row = self.inner.n_tokens as usize;
        assert!(row < self.n_max, "the batch was allocated for {} tokens", self.n_max);
        // SAFETY: each array has `n_max` places, and each token one id.
        unsafe {
            *self.inner.token.add(row) = token;
            *self.inner.pos.add(row) = pos;
            *self.inner.n_seq_id.add(row) = 1;
            **self.inner.seq_id.add(row) = id;
            *self.inner.logits.add(row) = i8::from(wants_logits);
        }
        self.inner.n_tokens += 1;
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: it was allocated here and is freed once.
        unsafe { sys::llama_batch_free(self.inner) }
    }
}

/// An adapter of a model, which frees it when it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adapter(NonNull<sys::llama_adapter_lora>);

// SAFETY: nothing changes an adapter once it is loaded.
unsafe impl Send for Adapter {}
unsafe impl Sync for Adapter {}

impl Adapter {
    /// Loads `path`, whose header must have been read: llama.cpp aborts on values of another type. `None`: the log says why.
    /// Nobody else may use the model meanwhile.
    pub(super) fn load(model: &LlamaModel, path: &Path) -> Option<Adapter> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        // SAFETY: the model is there, and the path is a C string that is read during the call only.
        NonNull::new(unsafe { sys::llama_adapter_lora_init(model_pointer(model), path.as_ptr()) }).map(Adapter)
    }
}

/// llama-cpp-2 has no call that gives it.
fn model_pointer(model: &LlamaModel) -> *mut sys::llama_model {
    const { assert!(size_of::<LlamaModel>() == size_of::<*mut sys::llama_model>()) }
    // SAFETY: `LlamaModel` is `repr(transparent)` over that pointer alone; the crate is pinned to this version.
    unsafe { *std::ptr::from_ref(model).cast::<*mut sys::llama_model>() }
}
