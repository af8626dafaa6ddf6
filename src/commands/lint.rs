//! `hob lint`: what in stored requests would break the reuse of what stands behind it, for people and for CI.
//!
//! A *body* is a file with the body of one chat completion. Bodies are compared in the order in which they are named, each with
//! the one before it. Where a configuration can be found, its model's chat template is looked at, too. Nothing is sent.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::format::{Format, grouped, shortened};
use crate::config::{Config, read_text};
use crate::http::{BadBody, parse_chat};
use crate::prompt::lint::{Finding, FindingPlace, lint};

#[derive(Debug, thiserror::Error)]
pub enum LintError {
    #[error("{path}: cannot be read")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path}: is no body of a chat completion")]
    Body { path: PathBuf, source: Box<BadBody> },
}

/// What `write` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub findings: Vec<FindingPart>,
    /// What was not looked at, and why.
    pub skipped: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FindingPart {
    /// "clock", "nonce", "tool_order", …: see the README.
    pub kind: &'static str,
    pub file: PathBuf,
    /// `None`: it is in the tools, or in a chat template.
    pub message: Option<usize>,
    /// From 1, in the message's text.
    pub line: Option<usize>,
    /// From the beginning of the message's text.
    pub byte: Option<usize>,
    pub tool: Option<usize>,
    /// The file it differs from.
    pub than: Option<PathBuf>,
    /// Shortened.
    pub text: String,
    /// What stood there before, shortened.
    pub before: Option<String>,
    /// Bytes of system text and tools that are computed again because of it.
    pub bytes_behind: usize,
}

/// No body could be read.
pub const EX_UNREADABLE: u8 = 2;

/// Looks at `bodies`. `config`: whose template is looked at, or why there is none.
pub fn run(bodies: &[PathBuf], config: Result<Config, String>) -> Result<Report, LintError> {
    let mut requests = Vec::with_capacity(bodies.len());
    for path in bodies {
        let bytes = std::fs::read(path).map_err(|source| LintError::Read { path: path.clone(), source })?;
        let request = parse_chat(&bytes, "lint")
            .map_err(|source| LintError::Body { path: path.clone(), source: Box::new(source) })?;
        requests.push(request);
    }
    let findings = lint(&requests);
    let mut report =
        Report { findings: findings.iter().map(|found| part(found, bodies)).collect(), skipped: Vec::new() };
    match config.and_then(|config| template(&config)) {
        Ok((path, text)) => report.findings.extend(template_date(path, &text)),
        Err(reason) => report.skipped.push(format!("the chat template: {reason}")),
    }
    Ok(report)
}

impl Report {
    /// 0, or 1 if anything was found.
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.findings.is_empty())
    }

    /// Two lines for each finding, or one JSON object.
    pub fn write(&self, format: Format, out: &mut impl Write) -> io::Result<()> {
        if format == Format::Json {
            serde_json::to_writer_pretty(&mut *out, self).map_err(io::Error::from)?;
            return writeln!(out);
        }
        for finding in &self.findings {
            writeln!(out, "{}: {}", format.bold(finding.place()), finding.sentence())?;
            if !finding.text.is_empty() {
                writeln!(out, "    {}", format.dim(&finding.text))?;
            }
            if let Some(before) = &finding.before {
                writeln!(out, "    before: {}", format.dim(before))?;
            }
        }
        for skipped in &self.skipped {
            writeln!(out, "not looked at: {skipped}")?;
        }
        match self.findings.len() {
            0 => writeln!(out, "{}", format.green("nothing found that would break reuse")),
            1 => writeln!(out, "1 finding"),
            n_findings => writeln!(out, "{n_findings} findings"),
        }
    }
}

impl FindingPart {
    fn place(&self) -> String {
        let mut place = self.file.display().to_string();
        if let Some(message) = self.message {
            let _ = write!(place, ": messages[{message}]");
        }
        if let (Some(line), Some(byte)) = (self.line, self.byte) {
            let _ = write!(place, ", line {line}, byte {byte}");
        }
        if let Some(tool) = self.tool {
            let _ = write!(place, ": tools[{tool}]");
        }
        place
    }

    fn sentence(&self) -> String {
        let than = self.than.as_ref().map(|than| format!("than in {}", than.display())).unwrap_or_default();
        let what = match self.kind {
            "clock" => "the time or the date, another one in each request".to_owned(),
            "nonce" => "made for one request".to_owned(),
            "uuid" => "a UUID: if it is another one in each request, nothing behind it is reused".to_owned(),
            "counter" => format!("a number one higher {than}"),
            "changed" => format!("other text {than}"),
            "user_text" => "the question itself stands in the system text".to_owned(),
            "white_space" => format!("other white space {than}"),
            "key_order" => format!("the same JSON with its keys in another order {than}"),
            "tool_order" => format!("the same tools in another order {than}"),
            "tool_changed" => format!("another definition {than}"),
            "tool_set" => format!("other tools {than}, not only more at the end"),
            _ => "the template prints the date (strftime_now): all prompts change at midnight".to_owned(),
        };
        match self.bytes_behind {
            0 => what,
            n_bytes => format!("{what}; {} bytes of system text and tools stand behind it", grouped(n_bytes as u64)),
        }
    }
}

fn part(found: &Finding, bodies: &[PathBuf]) -> FindingPart {
    let (mut message, mut line, mut byte, mut tool) = (None, None, None, None);
    match found.place {
        FindingPlace::Message { message_idx, line: number, byte: at } => {
            (message, line, byte) = (Some(message_idx), Some(number), Some(at));
        }
        FindingPlace::Call { message_idx } => message = Some(message_idx),
        FindingPlace::Tool { tool_idx } => tool = Some(tool_idx),
        FindingPlace::Tools => {}
    }
    FindingPart {
        kind: found.kind.name(),
        file: bodies[found.request_idx].clone(),
        message,
        line,
        byte,
        tool,
        than: found.is_by_comparison.then(|| bodies[found.request_idx - 1].clone()),
        text: shortened(&found.text),
        before: found.before.as_deref().map(shortened),
        bytes_behind: found.n_bytes_behind,
    }
}

fn template_date(path: PathBuf, text: &str) -> Option<FindingPart> {
    let line = text.lines().find(|line| line.contains("strftime_now"))?;
    Some(FindingPart {
        kind: "template_date",
        file: path,
        message: None,
        line: None,
        byte: None,
        tool: None,
        than: None,
        text: shortened(line.trim()),
        before: None,
        bytes_behind: 0,
    })
}

/// The configured chat template and the file it is in, or why it cannot be told.
fn template(config: &Config) -> Result<(PathBuf, String), String> {
    let Some(path) = &config.model.chat_template else { return template_of_model(&config.model.path) };
    let text = read_text(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok((path.clone(), text))
}

#[cfg(feature = "llama")]
fn template_of_model(path: &Path) -> Result<(PathBuf, String), String> {
    let text = crate::engine::llama::read_chat_templates(path).map_err(|error| error.to_string())?;
    Ok((path.to_owned(), text))
}

#[cfg(not(feature = "llama"))]
fn template_of_model(path: &Path) -> Result<(PathBuf, String), String> {
    Err(format!("{}: this hob was built without an engine", path.display()))
}
