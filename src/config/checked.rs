//! Second stage: from what stands in the file to values that hold.
//!
//! A *checked* value is in its range, has its default filled in and its paths made absolute. No file is read here.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Value;

use super::fault::Faults;
use super::raw::{Field, Raw, RawCache, RawLayout, RawModel, RawProfile, RawServer, RawTelemetry};
use super::threads::Processors;
use super::units::{parse_duration, parse_size, write_duration, write_size};
use super::{Access, Cache, Config, Gpu, GpuLayers, Layout, Listen, Model, ProfileFiles, Server, Telemetry};
use crate::engine::KvType;
use crate::request::LayoutMode;

/// 8088 is nobody's registered default among the servers that a house usually runs.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8088);

/// The database's name in the state folder.
const DATABASE: &str = "hob.sqlite";

/// The folder of K/V files in the state folder.
const KV_FOLDER: &str = "kv";

/// Tokens of one context: the largest that any model of today was trained for.
const CONTEXT_MAX: i64 = 1 << 20;

/// What a configuration means depends on where it stands and runs.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    /// The file, as it was named.
    pub(super) file: PathBuf,
    /// Its folder, absolute: what relative paths start from.
    pub(super) folder: PathBuf,
    /// `None`: this user has none.
    pub(super) state_folder: Option<PathBuf>,
    pub(super) processors: Processors,
    /// The text of the credential with clients' keys.
    pub(super) keys: Option<String>,
}

/// The values of `raw`. A faulty one is replaced by its default, so that the checks after this one can go on.
pub(super) fn check(raw: Raw, surroundings: &Surroundings, faults: &mut Faults) -> Config {
    let mut checker = Checker { surroundings, faults };
    let mut server = checker.server(raw.server);
    let model = checker.model(raw.model);
    let cache = checker.cache(raw.cache);
    let layout = checker.layout(raw.layout);
    let telemetry = checker.telemetry(raw.telemetry);
    let profiles = checker.profiles(raw.profiles, &model);
    let profile_names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
    server.access.clients = checker.clients(raw.clients, &profile_names, &model.name);
    checker.reach(&server);
    Config {
        file: surroundings.file.clone(),
        folder: surroundings.folder.clone(),
        state_folder: surroundings.state_folder.clone().unwrap_or_default(),
        server,
        model,
        cache,
        layout,
        telemetry,
        profiles,
    }
}

pub(super) struct Checker<'a> {
    pub(super) surroundings: &'a Surroundings,
    pub(super) faults: &'a mut Faults,
}

impl Checker<'_> {
    fn server(&mut self, raw: RawServer) -> Server {
        Server {
            listen: self.listen(raw.listen),
            max_body: self.size("server.max_body", raw.max_body, 1 << 10..=1 << 30, 8 << 20),
            queue: self.number("server.queue", raw.queue, 1..=10_000, 64) as usize,
            start_wait: self.duration("server.start_wait", raw.start_wait, 1..=24 * 60 * 60, 120),
            access: Access {
                allow_anonymous: self.flag("server.allow_anonymous", raw.allow_anonymous, false),
                hosts: self.hosts(raw.allowed_hosts),
                origins: self.origins(raw.allowed_origins),
                clients: Vec::new(),
            },
        }
    }

    fn model(&mut self, raw: RawModel) -> Model {
        let path = self.path("model.path", raw.path).unwrap_or_else(|| self.absolute("model.gguf"));
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Model {
            name: self.name("model.name", raw.name).unwrap_or(stem),
            path,
            context: self.number("model.context", raw.context, 256..=CONTEXT_MAX, 16_384) as usize,
            parallel: self.number("model.parallel", raw.parallel, 1..=64, 4) as usize,
            gpu: self.choice(
                "model.gpu",
                raw.gpu,
                &[("auto", Gpu::Auto), ("required", Gpu::Required), ("off", Gpu::Off)],
            ),
            gpu_layers: self.gpu_layers(raw.gpu_layers),
            kv_type: self.choice(
                "model.kv_type",
                raw.kv_type,
                &[("f16", KvType::F16), ("q8_0", KvType::Q8_0), ("q4_0", KvType::Q4_0)],
            ),
            threads: {
                let configured = self.number("model.threads", raw.threads, 0..=512, 0);
                self.surroundings.processors.threads(configured as usize)
            },
            speculate: self.flag("model.speculate", raw.speculate, true),
            chat_template: self.path("model.chat_template", raw.chat_template),
            adapters: self.adapters("model.adapter", raw.adapter),
        }
    }

    fn cache(&mut self, raw: RawCache) -> Cache {
        let configured = self.path("cache.dir", raw.dir);
        let own = || self.surroundings.state_folder.as_ref().map(|folder| folder.join(KV_FOLDER));
        let folder = configured.or_else(own).unwrap_or_default();
        Cache {
            folder,
            ram: self.size("cache.ram", raw.ram, 0..=1 << 40, 1 << 30),
            disk: self.size("cache.disk", raw.disk, 0..=1 << 43, 8 << 30),
            learned_pins: self.share("cache.learned_pins", raw.learned_pins, 0.25),
            keep_days: self.number("cache.keep_days", raw.keep_days, 1..=3_650, 7) as u32,
        }
    }

    fn layout(&mut self, raw: RawLayout) -> Layout {
        // Answers are as right in it as in `off`: `tests/it/real/meaning.rs`.
        let default = Some(Field::Given("safe".to_owned()));
        Layout { mode: self.choice("layout.mode", raw.mode.or(default), &LayoutMode::NAMES) }
    }

    fn telemetry(&mut self, raw: RawTelemetry) -> Telemetry {
        let configured = self.path("telemetry.path", raw.path);
        let path = configured.or_else(|| self.surroundings.state_folder.as_ref().map(|folder| folder.join(DATABASE)));
        if path.is_none() {
            let problem = "this user has no state folder; set it, or STATE_DIRECTORY in the environment";
            self.faults.key("telemetry.path", problem);
        }
        let flush_seconds = self.number("telemetry.flush_seconds", raw.flush_seconds, 1..=3_600, 60);
        Telemetry {
            path: path.unwrap_or_default(),
            keep_days: self.number("telemetry.keep_days", raw.keep_days, 1..=3_650, 90) as u32,
            flush: Duration::from_secs(flush_seconds as u64),
        }
    }

    fn profiles(&mut self, raw: Vec<RawProfile>, model: &Model) -> Vec<ProfileFiles> {
        let mut profiles: Vec<ProfileFiles> = Vec::new();
        for (index, raw) in raw.into_iter().enumerate() {
            let key = |name: &str| format!("profile[{index}].{name}");
            let name = self.name(&key("name"), raw.name);
            match &name {
                Some(name) if *name == model.name => {
                    self.faults.value(key("name"), name.as_str(), "is the model's name, too; must be another");
                }
                Some(name) => {
                    if let Some(first) = profiles.iter().position(|profile| profile.name == *name) {
                        let problem = format!("is the name of profile[{first}], too; must be another");
                        self.faults.value(key("name"), name.as_str(), problem);
                    }
                }
                None if self.faults.mentions(&key("name")) || self.faults.mentions(&format!("profile[{index}]")) => {}
                None => self.faults.key(key("name"), "is missing: clients choose a profile by its name"),
            }
            let (live, has_clock) = self.live(&key("live"), raw.live);
            profiles.push(ProfileFiles {
                live,
                has_clock,
                name: name.unwrap_or_default(),
                system: self.path(&key("system"), raw.system),
                tools: self.path(&key("tools"), raw.tools),
                documents: self.texts(&key("documents"), raw.documents).unwrap_or_default(),
                max_tokens: raw
                    .max_tokens
                    .map(|field| self.number(&key("max_tokens"), Some(field), 1..=CONTEXT_MAX, CONTEXT_MAX) as usize),
                thinking: self.choice(
                    &key("thinking"),
                    raw.thinking,
                    &[("auto", None), ("on", Some(true)), ("off", Some(false))],
                ),
                adapters: self.adapter_set(&key("adapters"), raw.adapters, &model.adapters),
            });
        }
        profiles
    }

    fn listen(&mut self, field: Option<Field<Vec<String>>>) -> Vec<Listen> {
        let Some(addresses) = self.texts("server.listen", field) else { return vec![Listen::Tcp(LISTEN)] };
        if addresses.is_empty() {
            self.faults.value("server.listen", Vec::<String>::new(), "must name at least one address");
        }
        addresses.iter().filter_map(|address| self.address(address)).collect()
    }

    fn address(&mut self, address: &str) -> Option<Listen> {
        if let Some(path) = address.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Some(Listen::Unix(self.absolute(path)));
        }
        // Other host names would need a resolver, which may not be there yet when a server boots.
        let numeric = match address.strip_prefix("localhost:") {
            Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
            None => address.to_owned(),
        };
        let Ok(socket_address) = numeric.parse::<SocketAddr>() else {
            let accepted = "must be \"host:port\" with an IP address or localhost as host, or \"unix:/path\"";
            self.faults.value("server.listen", address, accepted);
            return None;
        };
        Some(Listen::Tcp(socket_address))
    }

    /// Whoever reaches hob from another machine needs a key, unless it is written out that none is needed.
    fn reach(&mut self, server: &Server) {
        if server.access.allow_anonymous || !server.access.clients.is_empty() {
            return;
        }
        for listen in &server.listen {
            if let Listen::Tcp(address) = listen
                && !address.ip().to_canonical().is_loopback()
            {
                let problem = "can be reached from other machines, and no [[client]] has a key: `hob key new NAME` makes one; \
                    else it must be a loopback address, or server.allow_anonymous = true must say that everybody may ask";
                self.faults.value("server.listen", address.to_string(), problem);
            }
        }
    }

    /// Host names in lower case, as they are compared.
    fn hosts(&mut self, field: Option<Field<Vec<String>>>) -> Vec<String> {
        let hosts = self.texts("server.allowed_hosts", field).unwrap_or_default();
        for host in &hosts {
            if host.is_empty() || host.contains(['/', ':', '*', ' ']) {
                let accepted = "must be a host's name alone, without scheme and port: \"nas.local\"";
                self.faults.value("server.allowed_hosts", host.as_str(), accepted);
            }
        }
        hosts.into_iter().map(|host| host.to_lowercase()).collect()
    }

    fn origins(&mut self, field: Option<Field<Vec<String>>>) -> Vec<String> {
        let origins = self.texts("server.allowed_origins", field).unwrap_or_default();
        for origin in &origins {
            let is_fit = origin.split_once("://").is_some_and(|(scheme, host)| {
                !scheme.is_empty() && !host.is_empty() && !host.contains(['/', '*', ' '])
            });
            if !is_fit {
                let accepted = "must be an origin as browsers send it: \"https://chat.example\"";
                self.faults.value("server.allowed_origins", origin.as_str(), accepted);
            }
        }
        origins.into_iter().map(|origin| origin.to_lowercase()).collect()
    }

    fn gpu_layers(&mut self, field: Option<Field<Value>>) -> GpuLayers {
        match field {
            None => GpuLayers::All,
            Some(Field::Given(Value::String(text))) if text == "all" => GpuLayers::All,
            Some(Field::Given(Value::Integer(n_layers @ 0..=1_000))) => GpuLayers::Count(n_layers as u32),
            Some(Field::Given(value) | Field::Other(value)) => {
                self.faults.value("model.gpu_layers", value, "must be \"all\" or 0 to 1000");
                GpuLayers::All
            }
        }
    }

    /// A whole number in `range`; never outside it, also when faulty, as `default` lies in it.
    fn number(&mut self, key: &str, field: Option<Field<i64>>, range: RangeInclusive<i64>, default: i64) -> i64 {
        let value = match field {
            None => return default,
            Some(Field::Given(number)) if range.contains(&number) => return number,
            Some(Field::Given(number)) => Value::Integer(number),
            Some(Field::Other(value)) => value,
        };
        self.faults.value(key, value, must_be(range.start(), range.end()));
        default
    }

    /// A part of a whole, 0 to 1.
    fn share(&mut self, key: &str, field: Option<Field<f64>>, default: f64) -> f64 {
        let value = match field {
            None => return default,
            Some(Field::Given(share)) if (0.0..=1.0).contains(&share) => return share,
            Some(Field::Other(Value::Integer(whole @ 0..=1))) => return whole as f64,
            Some(Field::Given(number)) => Value::Float(number),
            Some(Field::Other(value)) => value,
        };
        self.faults.value(key, value, must_be(0.0, "1.0"));
        default
    }

    pub(super) fn size(
        &mut self,
        key: &str,
        field: Option<Field<String>>,
        range: RangeInclusive<u64>,
        default: u64,
    ) -> u64 {
        let value = match field {
            None => return default,
            Some(Field::Given(text)) => match parse_size(&text).filter(|bytes| range.contains(bytes)) {
                Some(bytes) => return bytes,
                None => Value::String(text),
            },
            Some(Field::Other(value)) => value,
        };
        let accepted = must_be(quoted(write_size(*range.start())), quoted(write_size(*range.end())));
        self.faults.value(key, value, format!("{accepted}, in B, KiB, MiB or GiB"));
        default
    }

    /// `range` and `default` in seconds.
    pub(super) fn duration(
        &mut self,
        key: &str,
        field: Option<Field<String>>,
        range: RangeInclusive<u64>,
        default: u64,
    ) -> Duration {
        let default = Duration::from_secs(default);
        let range = Duration::from_secs(*range.start())..=Duration::from_secs(*range.end());
        let value = match field {
            None => return default,
            Some(Field::Given(text)) => match parse_duration(&text).filter(|duration| range.contains(duration)) {
                Some(duration) => return duration,
                None => Value::String(text),
            },
            Some(Field::Other(value)) => value,
        };
        let accepted = must_be(quoted(write_duration(*range.start())), quoted(write_duration(*range.end())));
        self.faults.value(key, value, format!("{accepted}, in s, m, h or d"));
        default
    }

    pub(super) fn flag(&mut self, key: &str, field: Option<Field<bool>>, default: bool) -> bool {
        match field {
            None => default,
            Some(Field::Given(flag)) => flag,
            Some(Field::Other(value)) => {
                self.faults.value(key, value, "must be true or false");
                default
            }
        }
    }

    /// One of `choices`; the first is the default.
    pub(super) fn choice<T: Copy>(&mut self, key: &str, field: Option<Field<String>>, choices: &[(&str, T)]) -> T {
        let value = match field {
            None => return choices[0].1,
            Some(Field::Given(text)) => match choices.iter().find(|(name, _)| *name == text) {
                Some((_, choice)) => return *choice,
                None => Value::String(text),
            },
            Some(Field::Other(value)) => value,
        };
        let names: Vec<String> = choices.iter().map(|(name, _)| quoted(name)).collect();
        self.faults.value(key, value, format!("must be one of {}", names.join(", ")));
        choices[0].1
    }

    /// A name that can stand in a request's `model` field; `None`: not given, empty or faulty.
    pub(super) fn name(&mut self, key: &str, field: Option<Field<String>>) -> Option<String> {
        let name = self.text(key, field)?;
        let is_fit = name.chars().count() <= 64 && name.trim() == name && !name.chars().any(char::is_control);
        if !is_fit {
            let accepted = "must be 1 to 64 characters, without control characters and without blanks at its ends";
            self.faults.value(key, name, accepted);
            return None;
        }
        Some(name)
    }

    /// A text; an empty one means the default, as if the key were not there.
    pub(super) fn text(&mut self, key: &str, field: Option<Field<String>>) -> Option<String> {
        match field {
            None => None,
            Some(Field::Given(text)) => Some(text).filter(|text| !text.is_empty()),
            Some(Field::Other(value)) => {
                self.faults.value(key, value, "must be a text in quotes");
                None
            }
        }
    }

    pub(super) fn texts(&mut self, key: &str, field: Option<Field<Vec<String>>>) -> Option<Vec<String>> {
        match field {
            None => None,
            Some(Field::Given(texts)) => Some(texts),
            Some(Field::Other(value)) => {
                self.faults.value(key, value, "must be a list of texts in quotes");
                None
            }
        }
    }

    pub(super) fn path(&mut self, key: &str, field: Option<Field<String>>) -> Option<PathBuf> {
        self.text(key, field).map(|path| self.absolute(&path))
    }

    fn absolute(&self, path: &str) -> PathBuf {
        self.surroundings.folder.join(Path::new(path))
    }
}

fn must_be(least: impl Display, most: impl Display) -> String {
    format!("must be {least} to {most}")
}

fn quoted(text: impl Display) -> String {
    format!("\"{text}\"")
}
