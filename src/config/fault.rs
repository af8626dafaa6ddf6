//! What is wrong with a configuration.
//!
//! A *fault* is one thing to mend: where it stands, what stands there, what would be accepted. Faults are collected, so
//! that one look shows all of them.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Longest part of a value that a message quotes, in characters; a longer one hides the message.
const QUOTED_MAX: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The configuration file, as it was named.
    pub file: PathBuf,
    /// Dotted, as `model.parallel`; `line 3, column 7` in a text that is no TOML; empty for the file itself.
    pub key: String,
    /// What stands there, as TOML writes it.
    pub value: Option<String>,
    /// What is wrong with it, and what would be accepted.
    pub problem: String,
}

impl Fault {
    /// Whether nothing of the file is known: it cannot be read, or is no TOML.
    pub fn is_of_whole_file(&self) -> bool {
        self.key.is_empty() || self.key.starts_with("line ")
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        match &self.value {
            Some(value) => write!(f, "{} = {}: ", self.key, value)?,
            None if self.key.is_empty() => {}
            None => write!(f, "{}: ", self.key)?,
        }
        f.write_str(&self.problem)
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    #[error("no configuration found, looked for {looked_for}; name one with --config or HOB_CONFIG")]
    NotFound { looked_for: String },
    /// At least one. Displayed a line each.
    #[error("{}", lines(.0))]
    Faults(Vec<Fault>),
}

fn lines(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n")
}

/// The faults of one file so far.
#[derive(Debug)]
pub(super) struct Faults {
    file: PathBuf,
    pub(super) found: Vec<Fault>,
}

impl Faults {
    pub(super) fn of(file: &Path) -> Faults {
        Faults { file: file.to_owned(), found: Vec::new() }
    }

    /// Something is wrong with `value`.
    pub(super) fn value(&mut self, key: impl Into<String>, value: impl Into<toml::Value>, problem: impl Into<String>) {
        let value = Some(quoted(&value.into()));
        self.found.push(Fault { file: self.file.clone(), key: key.into(), value, problem: problem.into() });
    }

    /// Something is wrong with the key itself.
    pub(super) fn key(&mut self, key: impl Into<String>, problem: impl Into<String>) {
        self.found.push(Fault { file: self.file.clone(), key: key.into(), value: None, problem: problem.into() });
    }

    pub(super) fn mentions(&self, key: &str) -> bool {
        self.found.iter().any(|fault| fault.key == key)
    }
}

/// `value` on one line.
fn quoted(value: &toml::Value) -> String {
    let text = match value {
        toml::Value::String(text) => format!("{text:?}"),
        other => other.to_string().replace('\n', " "),
    };
    match text.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
