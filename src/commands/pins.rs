//! `hob pins`, `hob pin add`, `hob pin rm`: what the running daemon keeps warm.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::ask::{AskError, ask};
use super::format::{Format, grouped};
use crate::config::Config;

#[derive(Debug, thiserror::Error)]
pub enum PinsError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("{path} cannot be read")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not JSON")]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{name:?} is no pin's name: it has letters, digits, `.`, `_` and `-`")]
    Name { name: String },
    #[error("cannot write")]
    Write(#[from] io::Error),
}

pub fn list(config: &Config, format: Format, out: &mut impl Write) -> Result<(), PinsError> {
    let answer = ask(config, "GET", "/hob/v1/pins", String::new())?;
    if format == Format::Json {
        writeln!(out, "{answer:#}")?;
        return Ok(());
    }
    let pins = answer["pins"].as_array().map_or(&[][..], Vec::as_slice);
    if pins.is_empty() {
        writeln!(out, "no pins: a profile is one, and `hob pin add` makes one")?;
    }
    let width = pins.iter().filter_map(|pin| pin["name"].as_str()).map(str::len).max().unwrap_or(0);
    for pin in pins {
        let name = format!("{:<width$}", pin["name"].as_str().unwrap_or_default());
        writeln!(out, "{}  {}", format.bold(name), line(pin))?;
    }
    Ok(())
}

/// Pins what stands in front of the conversation in the request in `body`.
pub fn add(config: &Config, name: &str, body: &Path, public: bool, out: &mut impl Write) -> Result<(), PinsError> {
    let path = || body.to_owned();
    let text = std::fs::read_to_string(body).map_err(|source| PinsError::Read { path: path(), source })?;
    // As it stands there: keys in another order would be another prompt.
    let request: Box<serde_json::value::RawValue> =
        serde_json::from_str(&text).map_err(|source| PinsError::Json { path: path(), source })?;
    let wanted = format!("{{\"name\":{},\"public\":{public},\"request\":{}}}", json!(name), request.get());
    let pin = ask(config, "POST", "/hob/v1/pins", wanted)?;
    writeln!(out, "{name}: {} tokens", grouped(pin["tokens"].as_u64().unwrap_or_default()))?;
    Ok(())
}

pub fn remove(config: &Config, name: &str, out: &mut impl Write) -> Result<(), PinsError> {
    // Or it would be another path.
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        return Err(PinsError::Name { name: name.to_owned() });
    }
    ask(config, "DELETE", &format!("/hob/v1/pins/{name}"), String::new())?;
    writeln!(out, "{name} is no longer kept")?;
    Ok(())
}

fn line(pin: &Value) -> String {
    let n = |key: &str| grouped(pin[key].as_u64().unwrap_or_default());
    let whose = match (pin["configured"].as_bool(), pin["public"].as_bool()) {
        (Some(true), _) => "profile",
        (_, Some(true)) => "public",
        _ => "private",
    };
    let place = match (pin["warm"].as_bool(), pin["tier"].as_str()) {
        (Some(true), _) => "warm".to_owned(),
        (_, Some("none") | None) => format!("{} computed", n("done")),
        (_, Some(tier)) => format!("on {tier}"),
    };
    let saved = pin["saved_s"].as_f64().map(|seconds| format!(", {seconds} s saved")).unwrap_or_default();
    let age = pin["age_s"].as_u64().unwrap_or_default();
    let fault = match pin["file_fault"].as_str() {
        None => "",
        Some("model") => "; computed again: its file was another model's",
        Some("kv_type") => "; computed again: its file had another kv_type",
        Some("adapter") => "; computed again: its file was computed under another adapter",
        Some("settings") => "; computed again: its file was written by another version or under other settings",
        Some(_) => "; computed again: its file was damaged or gone",
    };
    format!("{whose}, {} tokens, {place}, pinned {age} s ago, {} hits{saved}{fault}", n("tokens"), n("hits"))
}
