//! `hob why`: why a request computed what it computed.
//!
//! What it says is a `telemetry::Account`; this file only finds the row and says it, as a text or as JSON. The daemon may be on
//! or off.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ask::bearer;
use super::chat::url_of;
use super::format::{Format, grouped, milliseconds};
use crate::config::Config;
use crate::telemetry::{Account, MovedRecord, Reader, TelemetryError, Wanted};

#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("no request is remembered yet")]
    Empty,
    #[error("no request {id} is remembered; its id is what x-request-id says")]
    Unknown { id: String },
    #[error("cannot write the account")]
    Write(#[from] io::Error),
}

/// Prints the account of the request called `id`, or of the newest one if that is `last`.
pub fn why(config: &Config, id: &str, format: Format, out: &mut impl Write) -> Result<(), WhyError> {
    let wanted = match id {
        "last" => Wanted::Newest(1),
        // As OpenAI's clients know it.
        id => Wanted::Id(id.strip_prefix("chatcmpl-").unwrap_or(id).to_owned()),
    };
    make_daemon_write(config);
    let row = Reader::open(&config.telemetry.path)?.rows(&wanted)?.into_iter().next();
    let row = row.ok_or_else(|| match wanted {
        Wanted::Newest(_) => WhyError::Empty,
        Wanted::Id(id) => WhyError::Unknown { id },
    })?;
    let account = Account::of(row, config.model.context, config.cache.ram);
    match format {
        Format::Json => {
            serde_json::to_writer_pretty(&mut *out, &account).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        Format::Plain | Format::Coloured => {
            let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
            out.write_all(text(&account, now_ms, format).as_bytes())?;
        }
    }
    Ok(())
}

/// A daemon writes its rows down once a minute, or when it is asked for one. One that is off has written all.
fn make_daemon_write(config: &Config) {
    // It is next door, and writes in milliseconds; one that is stuck must not hold up what can be read without it.
    const PATIENCE: Duration = Duration::from_millis(500);
    let Ok(url) = url_of(&config.server.listen) else { return };
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().into();
    let _ = agent.get(format!("{url}/hob/v1/requests?limit=1")).header("authorization", bearer(config)).call();
}

fn text(account: &Account, now_ms: i64, format: Format) -> String {
    let mut text = String::new();
    for (head, lines) in parts(account, now_ms) {
        for (index, line) in lines.iter().enumerate() {
            let head = if index == 0 { head } else { "" };
            // Padded before it is painted: a colour has no width.
            text += format!("{} {line}", format.bold(format_args!("{head:<9}"))).trim_end();
            text.push('\n');
        }
    }
    text
}

fn parts(account: &Account, now_ms: i64) -> Vec<(&'static str, Vec<String>)> {
    let Account { tokens, ms, .. } = account;
    let n = |number: usize| grouped(number as u64);
    let profile = account.profile.as_ref().map(|profile| format!(", profile {profile}")).unwrap_or_default();
    let age = age(Duration::from_millis(now_ms.saturating_sub(account.at_ms).max(0) as u64));
    let ttft = ms.ttft.map(|ms| format!(", the first token after {}", milliseconds(ms))).unwrap_or_default();
    let mut parts = vec![
        (
            "request",
            vec![
                account.id.clone(),
                format!("{age} ago, from {} ({}){profile}: {}", account.client, account.dialect, account.finish),
            ],
        ),
        (
            "tokens",
            vec![
                format!("{} of {} reused{ttft}", n(tokens.reused), n(tokens.prompt)),
                format!("{} computed in {}", n(tokens.computed), milliseconds(ms.prefill)),
            ],
        ),
        ("cause", vec![format!("{}: {}", account.cause, meaning(&account.cause))]),
    ];
    if let Some(first) = &account.first_computed {
        let place = match (&first.section, first.section_offset) {
            (Some(section), Some(0)) => format!(", where {section} begins"),
            (Some(section), Some(offset)) => format!(", {} tokens into {section}", n(offset)),
            _ => String::new(),
        };
        parts.push(("where", vec![format!("the first computed token is number {}{place}", n(first.token))]));
    }
    if account.lost.tokens > 0 {
        let time = account.lost.seconds.map(|seconds| format!(", {}", milliseconds(1_000.0 * seconds)));
        let n_lost = n(account.lost.tokens);
        parts.push(("lost", vec![format!("{n_lost} tokens in front of the newest turn{}", time.unwrap_or_default())]));
    }
    if let Some(plan) = &account.plan {
        let worth = match plan.gain_tokens {
            Some(n_gained) => format!(": moving would have saved {} tokens", n(n_gained)),
            None if plan.saved_tokens > 0 => format!(": {} of the reused tokens are its merit", n(plan.saved_tokens)),
            None => String::new(),
        };
        let history = match plan.history.as_str() {
            "untouched" => String::new(),
            history => format!(", history {history}"),
        };
        let tools = match plan.tools.as_str() {
            "" | "as_sent" => String::new(),
            tools => format!(", tools {tools}"),
        };
        let mut lines = vec![format!("{}{history}{tools}{worth}", plan.layout)];
        lines.extend(plan.moved.iter().map(|moved| moved_line(moved, plan.gain_tokens.is_some())));
        parts.push(("layout", lines));
        let width = plan.sections.iter().map(|section| section.name.chars().count()).max().unwrap_or(0);
        let sections = plan.sections.iter().map(|section| {
            let cut = section.cut.map(|cut| format!("  cut at {}", n(cut))).unwrap_or_default();
            let [tokens, bytes] = [section.tokens, section.bytes].map(n);
            format!("{:<width$}  {:<8} {tokens:>7} tokens {bytes:>8} bytes{cut}", section.name, section.class)
        });
        parts.push(("sections", sections.collect()));
    }
    if let Some(remedy) = &account.remedy {
        let saves = remedy.saves_tokens.map(|tokens| format!("   # would have saved {} tokens", n(tokens)));
        parts.push(("remedy", vec![format!("{}{}", remedy.line, saves.unwrap_or_default())]));
    }
    parts
}

fn moved_line(moved: &MovedRecord, would_move: bool) -> String {
    let MovedRecord { kind, n_bytes, hash, message, byte, to_message } = moved;
    let to = match to_message {
        Some(to_message) => format!(" to messages[{to_message}]"),
        None if would_move => " would move".to_owned(),
        None => " said before".to_owned(),
    };
    format!("{kind}, {} bytes ({hash}), from messages[{message}], byte {byte},{to}", grouped(*n_bytes as u64))
}

/// One sentence for each cause.
fn meaning(cause: &str) -> &'static str {
    match cause {
        "appended" => "only what is new at the end was computed",
        "live_block" => "what changed since the last turn was computed, with the question behind it",
        "cold" => "nothing of this prompt was seen before",
        "evicted" => "it was held, and its room was needed",
        "diverged" => "something in front of the conversation differs from what is held",
        "trimmed" => "the client left out or rewrote some of its history, or records of it are lost",
        "layout" => {
            "what changes was said anew, for a text that stays is another one or the old blocks took too much room"
        }
        "checkpoint" => "it is held, but this kind of model can go back to a few places only, or to none",
        "restore_failed" => "it was kept below the cells and could not be brought back; the log says why",
        "restore_slower" => "it is kept below the cells, and computing it was faster",
        "model" => "it was kept on disk, and another model had computed it",
        "kv_type" => "it was kept on disk in another number format of K and V (model.kv_type)",
        "settings" => "it was kept on disk by another version or under other settings; the log says which",
        "adapter" => "it was computed under other adapters or scales (lora), and is of no use under these",
        "too_large" => "it was held, and is larger than what is kept below the cells",
        _ => "this hob has no words for it",
    }
}

/// To one unit: `3 h`.
fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let units = [(24 * 60 * 60, "d"), (60 * 60, "h"), (60, "min")];
    match units.into_iter().find(|(length, _)| seconds >= *length) {
        Some((length, unit)) => format!("{} {unit}", seconds / length),
        None => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests;
