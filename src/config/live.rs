//! Checks the `[[profile.live]]`s: what a profile says of the house in front of each question.
//!
//! An *entry* names one source: a command, a file, an address on the loopback, or the built-in clock. Nothing is read or
//! run here.

use std::path::Path;

use toml::Value;

use super::checked::Checker;
use super::raw::{Field, RawLive};
use crate::sources::{Entry, LoopbackUrl, Source};

/// Of one profile. Each is read all the time, and a block of more lines would be no help to a model.
const N_ENTRIES_MAX: usize = 16;
const REFRESH_S: u64 = 30;
const TIMEOUT_S: u64 = 5;
/// About a thousand tokens: the states of a house.
const BYTES_MAX: u64 = 4 << 10;

impl Checker<'_> {
    /// The entries of one profile, and whether it has a clock.
    pub(super) fn live(&mut self, key: &str, field: Option<Field<Vec<Value>>>) -> (Vec<Entry>, bool) {
        let values = match field {
            None => Vec::new(),
            Some(Field::Given(values)) => values,
            Some(Field::Other(value)) => {
                self.faults.value(key, value, "must be a list: write its head as [[profile.live]]");
                Vec::new()
            }
        };
        if values.len() > N_ENTRIES_MAX {
            self.faults.key(key, format!("has {} entries; must have at most {N_ENTRIES_MAX}", values.len()));
        }
        let mut entries: Vec<Entry> = Vec::new();
        let mut has_clock = false;
        for (index, value) in values.into_iter().enumerate() {
            let key = format!("{key}[{index}]");
            let raw = RawLive::read(&key, value, self.faults);
            if self.faults.mentions(&key) {
                continue;
            }
            match self.entry(&key, raw) {
                Some(Live::Clock) => has_clock = true,
                Some(Live::Entry(entry)) if entries.iter().any(|other| other.name == entry.name) => {
                    self.faults.value(format!("{key}.name"), entry.name, "is the name of another entry, too");
                }
                Some(Live::Entry(entry)) => entries.push(entry),
                None => {}
            }
        }
        (entries, has_clock)
    }

    /// `None`: the faults say why.
    fn entry(&mut self, key: &str, raw: RawLive) -> Option<Live> {
        let of = |name: &str| format!("{key}.{name}");
        let RawLive { name, clock, command, file, url, refresh, timeout, max } = raw;
        let n_others = [name.is_some(), command.is_some(), file.is_some(), url.is_some()];
        let has_times = refresh.is_some() || timeout.is_some() || max.is_some();
        if self.flag(&of("clock"), clock, false) {
            if has_times || n_others.contains(&true) {
                self.faults.key(key, "a clock stands alone: it is built in and takes no other key");
                return None;
            }
            return Some(Live::Clock);
        }
        let n_sources = n_others[1..].iter().filter(|given| **given).count();
        let name = self.name(&of("name"), name);
        let source = match self.texts(&of("command"), command) {
            Some(command) if command.first().is_none_or(String::is_empty) => {
                self.faults.value(of("command"), command, "must name a program");
                None
            }
            Some(mut command) => {
                // A name is looked for in PATH; a path is relative to the configuration, as all are.
                if command[0].contains('/') {
                    let program = self.surroundings.folder.join(Path::new(&command[0]));
                    command[0] = program.to_string_lossy().into_owned();
                }
                Some(Source::Command(command))
            }
            None => None,
        };
        let source = source.or(self.path(&of("file"), file).map(Source::File));
        let url = self.text(&of("url"), url).and_then(|url| match LoopbackUrl::parse(&url) {
            Ok(url) => Some(Source::Url(url)),
            Err(problem) => {
                self.faults.value(of("url"), url, problem);
                None
            }
        });
        let source = source.or(url);
        let refresh = self.duration(&of("refresh"), refresh, 1..=24 * 60 * 60, REFRESH_S);
        let timeout = self.duration(&of("timeout"), timeout, 1..=60, TIMEOUT_S);
        let n_bytes_max = self.size(&of("max"), max, 1..=64 << 10, BYTES_MAX);
        if n_sources != 1 {
            self.faults.key(key, "must have one of clock = true, command, file and url");
        }
        if name.is_none() && !self.faults.mentions(&of("name")) {
            self.faults.key(of("name"), "is missing: the value stands behind it in the prompt");
        }
        Some(Live::Entry(Entry { name: name?, source: source?, refresh, timeout, n_bytes_max }))
    }
}

enum Live {
    Clock,
    Entry(Entry),
}
