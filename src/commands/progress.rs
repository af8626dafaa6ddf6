//! Progress of long work: a bar on a terminal, a line now and then elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One piece of long work. Ends when it is dropped.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Work that is known in parts of a hundred.
    pub fn percent(what: &'static str) -> Progress {
        Progress::new(what, 100, "{msg} {bar:30} {percent}%")
    }

    /// Work that is counted in tokens: shows tokens done of all, tokens per second and the time left.
    pub fn tokens(what: impl Into<String>, n_tokens: u64) -> Progress {
        Progress::new(what.into(), n_tokens, "{msg} {bar:30} {pos}/{len} tokens, {per_sec}, {eta} left")
    }

    /// `done`: 0.0 to 1.0.
    pub fn set_percent(&self, done: f32) {
        self.bar.set_position((done * 100.0) as u64);
    }

    pub fn set(&self, n_done: u64) {
        self.bar.set_position(n_done);
    }

    fn new(what: impl Into<String>, length: u64, template: &str) -> Progress {
        let style = ProgressStyle::with_template(template).expect("the templates above are well formed");
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr()).with_style(style);
        bar.set_message(what.into());
        bar.enable_steady_tick(Duration::from_millis(250));
        Progress { bar }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
