//! Defines the one *backend* of the process (llama.cpp's global state) and where its log goes.
//!
//! llama.cpp reports why a load failed only in its log. So the log is routed into `tracing`, target `llama`, and its
//! errors are collected while a call runs, for the caller to tell them once. llama.cpp's `info` is detail here: a load writes a hundred such lines.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_sys_2 as sys;

/// Initialised at the first call, never torn down: models may live until the process ends.
pub(super) fn backend() -> &'static LlamaBackend {
    static BACKEND: OnceLock<LlamaBackend> = OnceLock::new();
    BACKEND.get_or_init(|| {
        // SAFETY: `on_log` has the expected signature, lives for the whole process and uses no user data.
        unsafe {
            sys::llama_log_set(Some(on_log), std::ptr::null_mut());
            sys::ggml_log_set(Some(on_log), std::ptr::null_mut());
        }
        LlamaBackend::init().expect("the backend is initialised here alone")
    })
}

/// Runs `call` and returns with its result the errors that llama.cpp logged on this thread meanwhile.
pub(super) fn with_errors<T>(call: impl FnOnce() -> T) -> (T, Vec<String>) {
    LOG.with_borrow_mut(|log| log.errors = Some(Vec::new()));
    let result = call();
    (result, LOG.with_borrow_mut(|log| log.errors.take()).unwrap_or_default())
}

/// A line of the log comes in pieces; a piece without a line feed is continued by the next.
#[derive(Default)]
struct Log {
    line: String,
    level: sys::ggml_log_level,
    /// `Some` while they are collected.
    errors: Option<Vec<String>>,
}

/// More errors than this explain nothing more.
const N_ERRORS_MAX: usize = 16;

thread_local! {
    static LOG: RefCell<Log> = RefCell::default();
}

impl Log {
    fn add(&mut self, level: sys::ggml_log_level, text: &str) {
        if level != sys::GGML_LOG_LEVEL_CONT {
            self.emit();
            self.level = level;
        }
        self.line.push_str(text);
        if self.line.ends_with('\n') {
            self.emit();
        }
    }

    fn emit(&mut self) {
        let line = std::mem::take(&mut self.line);
        let line = line.trim_end();
        if line.is_empty() {
            return;
        }
        match self.level {
            sys::GGML_LOG_LEVEL_ERROR => match &mut self.errors {
                Some(errors) => {
                    tracing::debug!(target: "llama", "{line}");
                    if errors.len() < N_ERRORS_MAX {
                        errors.push(line.to_owned());
                    }
                }
                None => tracing::error!(target: "llama", "{line}"),
            },
            sys::GGML_LOG_LEVEL_WARN => tracing::warn!(target: "llama", "{line}"),
            sys::GGML_LOG_LEVEL_INFO => tracing::debug!(target: "llama", "{line}"),
            _ => tracing::trace!(target: "llama", "{line}"),
        }
    }
}

unsafe extern "C" fn on_log(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: llama.cpp hands over a C string that is valid during this call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // A thread that is ending, or a log line written while one is being emitted, has no place to put it.
    let _ = LOG.try_with(|log| log.try_borrow_mut().map(|mut log| log.add(level, &text)));
}
