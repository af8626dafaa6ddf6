//! Checks the `[[client]]`s and what they may do: who may ask, with which key, and how it is treated.
//!
//! A *key* is a long random text that a client sends with each request; only its hash is configured. A systemd credential may
//! bring keys, too, so that none need stand in a file that others read. Who asks without a key is its source address.

use std::net::IpAddr;
use std::time::Duration;

use super::checked::Checker;
use super::raw::{Field, RawClient};
use crate::request::{LayoutMode, Priority};

/// The systemd credential that brings keys: `LoadCredential=hob-keys:/etc/hob/keys`, a line `NAME KEY` for each client.
pub(super) const CREDENTIAL: &str = "hob-keys";

/// Names that mean something else where clients are named.
const RESERVED: [&str; 3] = ["all", "unix", "public"];

/// BLAKE3 of a key. A key has 256 random bits: no slow hash is needed to keep it from being guessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyHash(blake3::Hash);

impl KeyHash {
    /// Comparing two takes the same time wherever they differ.
    pub fn of(key: &str) -> KeyHash {
        KeyHash(blake3::hash(key.as_bytes()))
    }

    /// As `key_hash` is configured: 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<KeyHash> {
        blake3::Hash::from_hex(text).ok().map(KeyHash)
    }

    pub fn to_hex(self) -> String {
        self.0.to_hex().to_string()
    }
}

/// Who may ask, and from where.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Access {
    /// Who brings no key is let in, too, as its source address.
    pub allow_anonymous: bool,
    /// Names that a request's `Host` may have besides IP addresses and `localhost`, in lower case.
    pub hosts: Vec<String>,
    /// Origins whose pages may ask: `https://chat.example`.
    pub origins: Vec<String>,
    pub clients: Vec<ClientEntry>,
}

/// A `[[client]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientEntry {
    pub name: String,
    pub key: KeyHash,
    /// `None`: as `layout.mode` says.
    pub layout: Option<LayoutMode>,
    pub priority: Priority,
    /// What it talks to when it names no model, or one that is not here.
    pub profile: Option<String>,
    /// Paths that it may ask for, with all below them; none: all but hob's own.
    pub routes: Vec<String>,
    pub rate: Option<Rate>,
}

/// At most so many requests in so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub n_requests: u32,
    pub per: Duration,
}

impl Rate {
    const UNITS: [(&str, u64); 4] = [("s", 1), ("min", 60), ("h", 60 * 60), ("d", 24 * 60 * 60)];

    /// `30/min`.
    fn parse(text: &str) -> Option<Rate> {
        let (number, unit) = text.split_once('/')?;
        let n_requests = number.trim().parse().ok().filter(|n| *n > 0)?;
        let (_, seconds) = Rate::UNITS.into_iter().find(|(name, _)| *name == unit.trim())?;
        Some(Rate { n_requests, per: Duration::from_secs(seconds) })
    }
}

impl Checker<'_> {
    /// `profiles`: the names that a client's may be.
    pub(super) fn clients(&mut self, raw: Vec<RawClient>, profiles: &[&str], model_name: &str) -> Vec<ClientEntry> {
        let brought = self.brought_keys();
        let mut clients: Vec<ClientEntry> = Vec::new();
        for (index, raw) in raw.into_iter().enumerate() {
            let of = |name: &str| format!("client[{index}].{name}");
            let Some(name) = self.client_name(&of("name"), raw.name) else { continue };
            if clients.iter().any(|client| client.name == name) {
                self.faults.value(of("name"), name, "is the name of another client, too");
                continue;
            }
            let key = match (self.key_hash(&of("key_hash"), raw.key_hash), brought.iter().find(|(of, _)| *of == name)) {
                (Some(key), None) => Some(key),
                (None, Some((_, key))) => Some(*key),
                (Some(_), Some(_)) => {
                    self.faults.key(of("key_hash"), format!("the credential {CREDENTIAL} has a key for {name}, too"));
                    None
                }
                (None, None) if self.faults.mentions(&of("key_hash")) => None,
                (None, None) => {
                    self.faults.key(of("key_hash"), format!("is missing: `hob key new {name}` makes a key"));
                    None
                }
            };
            let profile = self.text(&of("profile"), raw.profile);
            if let Some(profile) = profile.as_deref().filter(|name| !profiles.contains(name) && *name != model_name) {
                self.faults.value(of("profile"), profile, "is the name of no [[profile]]");
            }
            let layout = raw.layout.map(|field| self.choice(&of("layout"), Some(field), &LayoutMode::NAMES));
            let priority = self.choice(&of("priority"), raw.priority, &Priority::NAMES);
            let routes = self.routes(&of("routes"), raw.routes);
            let rate = self.rate(&of("rate"), raw.rate);
            clients.extend(key.map(|key| ClientEntry { name, key, layout, priority, profile, routes, rate }));
        }
        for (name, key) in brought {
            if clients.iter().all(|client| client.name != name) {
                clients.push(ClientEntry::plain(name, key));
            }
        }
        for (index, client) in clients.iter().enumerate() {
            if let Some(twin) = clients[..index].iter().find(|other| other.key == client.key) {
                let problem = format!("{} and {} have the same key; each needs its own", twin.name, client.name);
                self.faults.key("client", problem);
            }
        }
        clients
    }

    /// Names and keys of the credential.
    fn brought_keys(&mut self) -> Vec<(String, KeyHash)> {
        let Some(text) = self.surroundings.keys.clone() else { return Vec::new() };
        let mut keys: Vec<(String, KeyHash)> = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next()) {
                (Some(name), Some(key), None)
                    if is_client_name(name) && keys.iter().all(|(other, _)| other != name) =>
                {
                    keys.push((name.to_owned(), KeyHash::of(key)));
                }
                // The line holds a key: it is not quoted.
                _ => self.faults.key(
                    format!("credential {CREDENTIAL}, line {}", index + 1),
                    "must be a client's name, which no line before has, a blank and its key",
                ),
            }
        }
        keys
    }

    fn client_name(&mut self, key: &str, field: Option<Field<String>>) -> Option<String> {
        let name = self.text(key, field);
        match name {
            Some(name) if is_client_name(&name) => Some(name),
            Some(name) => {
                let accepted =
                    "must be 1 to 64 of a-z, A-Z, 0-9, `.`, `_`, `-`, no address, and none of all, unix, public";
                self.faults.value(key, name, accepted);
                None
            }
            None => {
                if !self.faults.mentions(key) {
                    self.faults.key(key, "is missing: logs and `hob forget` name a client by it");
                }
                None
            }
        }
    }

    fn key_hash(&mut self, key: &str, field: Option<Field<String>>) -> Option<KeyHash> {
        let text = self.text(key, field)?;
        let hash = KeyHash::parse(&text);
        if hash.is_none() {
            // Whoever wrote the key itself here should not find it in a log.
            self.faults.key(key, "must be 64 hexadecimal digits, as `hob key new` prints them");
        }
        hash
    }

    fn routes(&mut self, key: &str, field: Option<Field<Vec<String>>>) -> Vec<String> {
        let routes = self.texts(key, field).unwrap_or_default();
        for (index, route) in routes.iter().enumerate() {
            if !route.starts_with('/') {
                let accepted = "must be a path, which stands for all below it, too: \"/v1/\", \"/api/chat\"";
                self.faults.value(format!("{key}[{index}]"), route.as_str(), accepted);
            }
        }
        routes
    }

    fn rate(&mut self, key: &str, field: Option<Field<String>>) -> Option<Rate> {
        let text = self.text(key, field)?;
        let rate = Rate::parse(&text);
        if rate.is_none() {
            self.faults.value(key, text, "must be a number of requests per s, min, h or d: \"30/min\"");
        }
        rate
    }
}

impl ClientEntry {
    /// With nothing but a key.
    pub fn plain(name: String, key: KeyHash) -> ClientEntry {
        ClientEntry {
            name,
            key,
            layout: None,
            priority: Priority::Interactive,
            profile: None,
            routes: Vec::new(),
            rate: None,
        }
    }
}

/// A name that no keyless client, which is named by its address, can have.
pub fn is_client_name(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=64).contains(&name.len())
        && name.bytes().all(is_fit)
        && !RESERVED.contains(&name)
        && name.parse::<IpAddr>().is_err()
}
