//! `hob plan --request`: the plan of one stored request, without computing anything.
//!
//! The request is planned as one of a client on this machine: with what was learnt of such clients, which is read and not
//! changed, and with every clock in it taken for one, since its time has passed. The owner looks at his own file, so its text is
//! shown, shortened.

use std::io::{self, Write};

use serde::Serialize;

use crate::commands::format::{Format, grouped, shortened};
use crate::config::Config;
use crate::engine::{EngineError, Model, Vocab};
use crate::http::{BadBody, parse_chat};
use crate::prompt::{Layout, Moment, Moved, Planned, Planner, Profile, PromptError, Region};
use crate::request::Token;

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Body(#[from] BadBody),
    #[error(transparent)]
    Prompt(#[from] PromptError),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RequestPlan {
    pub model: String,
    pub profile: Option<String>,
    pub n_tokens: usize,
    /// `model.context`.
    pub n_context_tokens: usize,
    /// "off", "observe", "safe", "optimise".
    pub layout: &'static str,
    /// What the history is rendered from.
    pub history: &'static str,
    /// Token offsets where a conversation can be cut off.
    pub cuts: Vec<usize>,
    /// From front to back; a section stands several times where live blocks stand between its messages.
    pub parts: Vec<Part>,
    pub moved: Vec<MovedPart>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    pub section: String,
    pub class: &'static str,
    pub n_tokens: usize,
    /// The beginning of its text, control tokens left out.
    pub text: String,
    /// Whether a stable cut ends it.
    pub is_cut: bool,
}

/// What leaves the client's system text, or would in `observe`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MovedPart {
    /// "clock", "prose", "key", "item", "row", "heading".
    pub kind: &'static str,
    pub n_bytes: usize,
    pub from_message: usize,
    pub from_byte: usize,
    /// The message in front of whose text it stands.
    pub to_message: Option<usize>,
    pub text: String,
}

impl RequestPlan {
    /// The plan of the request in `body`, if `model` answered for `profiles`.
    pub fn of<M: Model>(
        config: &Config,
        profiles: Vec<Profile>,
        model: &M,
        body: &[u8],
    ) -> Result<RequestPlan, RequestError> {
        let request = parse_chat(body, CLIENT)?;
        let vocab = model.vocab();
        let planner = Planner::new(vocab.clone(), model.template(), config.model.name.clone(), profiles)?;
        let planner = planner.with_adapters(config.model.known_adapters());
        let layout = Layout {
            mode: config.layout.mode,
            n_context_tokens: config.model.context,
            file: Some(config.layout_file()).filter(|file| file.exists()),
        };
        let planned = planner.with_layout(layout).for_stored_requests().plan(&request, &Moment::now())?;
        Ok(RequestPlan {
            model: request.model,
            n_tokens: planned.prompt.tokens.len(),
            n_context_tokens: config.model.context,
            layout: planned.mode.name(),
            history: planned.live_cause.name(),
            parts: parts(&planned, vocab.as_ref()),
            moved: planned.moved.iter().map(moved).collect(),
            cuts: planned.prompt.cuts,
            profile: planned.profile,
        })
    }

    /// A table, or one JSON object.
    pub fn write(&self, format: Format, out: &mut impl Write) -> io::Result<()> {
        if format == Format::Json {
            serde_json::to_writer_pretty(&mut *out, self).map_err(io::Error::from)?;
            return writeln!(out);
        }
        let n = |number: usize| grouped(number as u64);
        let [n_tokens, n_context] = [self.n_tokens, self.n_context_tokens].map(n);
        writeln!(out, "{} {}: {n_tokens} of {n_context} tokens", format.bold("request"), self.model)?;
        if self.n_tokens >= self.n_context_tokens {
            writeln!(out, "        {}", format.red("it does not fit: an answer needs at least one token"))?;
        }
        let width = self.parts.iter().map(|part| part.section.chars().count()).max().unwrap_or(0);
        for part in &self.parts {
            let cut = if part.is_cut { "cut" } else { "" };
            let (n_tokens, text) = (n(part.n_tokens), format.dim(&part.text));
            writeln!(out, "        {:<width$}  {:<8} {n_tokens:>7} {cut:<3}  {text}", part.section, part.class)?;
        }
        let history = Some(self.history).filter(|history| *history != "untouched");
        let history = history.map(|history| format!(", history {history}")).unwrap_or_default();
        writeln!(out, "{} {}{history}", format.bold("layout "), self.layout)?;
        for moved in &self.moved {
            let MovedPart { kind, n_bytes, from_message, from_byte, to_message, text } = moved;
            let to = to_message.map_or("would move".to_owned(), |to_message| format!("to messages[{to_message}]"));
            let text = format.dim(text);
            writeln!(
                out,
                "        {kind}, {n_bytes} bytes, from messages[{from_message}], byte {from_byte}, {to}: {text}"
            )?;
        }
        Ok(())
    }
}

/// Who asks: the name of clients on this machine.
const CLIENT: &str = "127.0.0.1";

fn moved(moved: &Moved) -> MovedPart {
    MovedPart {
        kind: moved.kind,
        n_bytes: moved.text.len(),
        from_message: moved.from_message,
        from_byte: moved.from_byte,
        to_message: moved.to_message,
        text: shortened(&moved.text),
    }
}

fn parts(planned: &Planned, vocab: &dyn Vocab) -> Vec<Part> {
    let starts = std::iter::once(0).chain(planned.regions.iter().map(|region| region.end));
    let part = |(region, start): (&Region, usize)| {
        let tokens = &planned.prompt.tokens[start..region.end];
        let section = &planned.sections[region.section_idx];
        Part {
            section: section.name.clone(),
            class: section.class.name(),
            n_tokens: tokens.len(),
            text: beginning(tokens, vocab),
            is_cut: section.cut == Some(region.end),
        }
    };
    planned.regions.iter().zip(starts).map(part).collect()
}

fn beginning(tokens: &[Token], vocab: &dyn Vocab) -> String {
    // More than what is shown, however short its tokens are.
    const TOKENS_MAX: usize = 200;
    let mut text = Vec::new();
    tokens.iter().take(TOKENS_MAX).for_each(|token| vocab.piece(*token, &mut text));
    shortened(&String::from_utf8_lossy(&text))
}
