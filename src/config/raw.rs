//! First stage: what stands in the file, key by key, nothing decided yet.
//!
//! A *field* is what one key holds, of the wanted kind or not. Unknown keys, and values of the wrong kind, do not end the
//! reading, as they would with serde alone: they become faults beside the others.

use serde::Deserialize;
use toml::{Table, Value};

use super::fault::Faults;

/// What a key holds.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Field<T> {
    Given(T),
    /// Of another kind than wanted.
    Other(Value),
}

/// A section's struct and the list of its keys from one text, so that they cannot disagree.
macro_rules! section {
    ($section:ident { $($key:ident: $kind:ty),* $(,)? }) => {
        #[derive(Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(super) struct $section { $(pub(super) $key: Option<Field<$kind>>,)* }

        impl $section {
            pub(super) const KEYS: &[&str] = &[$(stringify!($key)),*];
        }
    };
}

section!(RawServer {
    listen: Vec<String>,
    max_body: String,
    queue: i64,
    start_wait: String,
    allow_anonymous: bool,
    allowed_hosts: Vec<String>,
    allowed_origins: Vec<String>,
});
section!(RawModel {
    path: String,
    name: String,
    context: i64,
    parallel: i64,
    gpu: String,
    gpu_layers: Value,
    kv_type: String,
    threads: i64,
    speculate: bool,
    chat_template: String,
    adapter: Vec<Value>,
});
section!(RawCache { dir: String, ram: String, disk: String, learned_pins: f64, keep_days: i64 });
section!(RawLayout { mode: String });
section!(RawTelemetry { path: String, keep_days: i64, flush_seconds: i64 });
section!(RawProfile {
    name: String,
    system: String,
    tools: String,
    documents: Vec<String>,
    max_tokens: i64,
    thinking: String,
    adapters: Vec<String>,
    live: Vec<Value>,
});
section!(RawClient {
    name: String,
    key_hash: String,
    layout: String,
    priority: String,
    profile: String,
    routes: Vec<String>,
    rate: String,
});
section!(RawAdapter { name: String, path: String, scale: f64, default: bool });
section!(RawLive {
    name: String,
    clock: bool,
    command: Vec<String>,
    file: String,
    url: String,
    refresh: String,
    timeout: String,
    max: String,
});

/// Every section, in the order of `config.example.toml`.
pub(super) const SECTIONS: &[(&str, &[&str])] = &[
    ("server", RawServer::KEYS),
    ("model", RawModel::KEYS),
    ("cache", RawCache::KEYS),
    ("layout", RawLayout::KEYS),
    ("telemetry", RawTelemetry::KEYS),
    ("profile", RawProfile::KEYS),
    ("client", RawClient::KEYS),
];

/// Names that belong to planned capabilities: whoever writes them should not be told of a typing error.
const PLANNED: &[&str] = &["model.idle_release", "telemetry.prompts"];

#[derive(Default)]
pub(super) struct Raw {
    pub(super) server: RawServer,
    pub(super) model: RawModel,
    pub(super) cache: RawCache,
    pub(super) layout: RawLayout,
    pub(super) telemetry: RawTelemetry,
    pub(super) profiles: Vec<RawProfile>,
    pub(super) clients: Vec<RawClient>,
}

impl Raw {
    /// Reads the text of a configuration. What cannot be understood is left out and stands in `faults`.
    pub(super) fn read(text: &str, faults: &mut Faults) -> Raw {
        let table: Table = match toml::from_str(text) {
            Ok(table) => table,
            Err(error) => {
                let (line, column) = line_and_column(text, error.span().map_or(0, |span| span.start));
                let problem = error.message().trim_end().replace('\n', "; ");
                faults.key(format!("line {line}, column {column}"), problem);
                return Raw::default();
            }
        };
        let mut raw = Raw::default();
        for (name, value) in table {
            match name.as_str() {
                "server" => raw.server = section(&name, value, RawServer::KEYS, faults),
                "model" => raw.model = section(&name, value, RawModel::KEYS, faults),
                "cache" => raw.cache = section(&name, value, RawCache::KEYS, faults),
                "layout" => raw.layout = section(&name, value, RawLayout::KEYS, faults),
                "telemetry" => raw.telemetry = section(&name, value, RawTelemetry::KEYS, faults),
                "profile" => raw.profiles = list(&name, value, RawProfile::KEYS, faults),
                "client" => raw.clients = list(&name, value, RawClient::KEYS, faults),
                _ => unknown(&name, &name, SECTIONS.iter().map(|(section, _)| (*section).to_owned()), faults),
            }
        }
        raw
    }
}

impl RawLive {
    /// The entry `name` (`profile[0].live[1]`).
    pub(super) fn read(name: &str, value: Value, faults: &mut Faults) -> RawLive {
        section(name, value, RawLive::KEYS, faults)
    }
}

impl RawAdapter {
    /// The entry `name` (`model.adapter[0]`).
    pub(super) fn read(name: &str, value: Value, faults: &mut Faults) -> RawAdapter {
        section(name, value, RawAdapter::KEYS, faults)
    }
}

/// Sections of one name, each headed `[[name]]`.
fn list<T: Default + serde::de::DeserializeOwned>(
    name: &str,
    value: Value,
    keys: &[&str],
    faults: &mut Faults,
) -> Vec<T> {
    let Value::Array(entries) = value else {
        faults.value(name, value, format!("must be a list: write its head as [[{name}]]"));
        return Vec::new();
    };
    let numbered = entries.into_iter().enumerate();
    numbered.map(|(index, value)| section(&format!("{name}[{index}]"), value, keys, faults)).collect()
}

/// One section of which `keys` are known.
fn section<T: Default + serde::de::DeserializeOwned>(
    name: &str,
    value: Value,
    keys: &[&str],
    faults: &mut Faults,
) -> T {
    let Value::Table(mut table) = value else {
        let head = match name {
            _ if name.contains(".live[") => "[[profile.live]]".to_owned(),
            _ => match name.split_once('[') {
                Some((list, _)) => format!("[[{list}]]"),
                None => format!("[{name}]"),
            },
        };
        faults.value(name, value, format!("must be a section: write its head as {head}"));
        return T::default();
    };
    table.retain(|key, _| {
        let is_known = keys.contains(&key);
        if !is_known {
            let elsewhere = SECTIONS.iter().filter(|(_, keys)| keys.contains(&key));
            let homes = elsewhere.map(|(section, _)| format!("{section}.{key}"));
            let siblings = keys.iter().map(|sibling| format!("{name}.{sibling}"));
            unknown(&format!("{name}.{key}"), key, homes.chain(siblings), faults);
        }
        is_known
    });
    Value::Table(table).try_into().expect("known keys take a value of any kind")
}

/// `path` is not known: names the nearest of `candidates`, or the section where `key` would be right.
fn unknown(path: &str, key: &str, candidates: impl Iterator<Item = String>, faults: &mut Faults) {
    if PLANNED.contains(&path) {
        return faults.key(path, "this version of hob does not know this key yet");
    }
    let distance = |candidate: &str| {
        let last = candidate.rsplit('.').next().unwrap_or(candidate);
        strsim::damerau_levenshtein(&key.to_lowercase(), last)
    };
    // A third of the letters wrong is still a typing error; more is another word.
    let n_wrong_max = (key.chars().count() / 3).max(1);
    let nearest = candidates.map(|candidate| (distance(&candidate), candidate)).min_by_key(|(distance, _)| *distance);
    match nearest {
        Some((distance, candidate)) if distance <= n_wrong_max => {
            faults.key(path, format!("unknown key; did you mean {candidate}?"));
        }
        _ => faults.key(path, "unknown key"),
    }
}

/// Both from 1, of the byte at `offset`.
fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |line_feed| line_feed + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
