//! The configuration: TOML → checked values. A leaf.
//!
//! A *key* is one line of the file, dotted as `model.parallel`. Every fault names file, key, value and what would be
//! accepted, and all are found at once. Paths are made absolute against the file's folder. Loading reads the file alone;
//! what it names is read by `profile` and by those who use it.

mod adapters;
mod checked;
mod client;
mod fault;
mod live;
mod memory;
mod places;
mod profile;
mod raw;
mod threads;
mod units;

use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use client::{Access, ClientEntry, KeyHash, Rate, is_client_name};
pub use fault::{ConfigError, Fault};
pub use memory::{available_memory, memory_limit, that_fits};
pub use places::locate;
pub use profile::{read_profiles, read_text};
pub use units::{parse_duration, parse_size, write_duration, write_size};

use self::checked::{Surroundings, check};
use self::fault::Faults;
use self::raw::Raw;
use self::threads::Processors;
pub use crate::engine::{Gpu, GpuLayers};
use crate::engine::{KvType, Threads};
use crate::prompt::KnownAdapter;
use crate::request::{AdapterSet, LayoutMode, Scale};
use crate::sources::Entry;

impl Config {
    /// Reads and checks `file`.
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let (config, faults) = Config::examine(file);
        if faults.is_empty() { Ok(config) } else { Err(ConfigError::Faults(faults)) }
    }

    /// Which pins clients asked for. Private text.
    pub fn pins_file(&self) -> PathBuf {
        self.state_folder.join("pins")
    }

    /// The day that pins show, where they keep one.
    pub fn day_file(&self) -> PathBuf {
        self.state_folder.join("pinned-day")
    }

    /// The key of commands on this machine, where clients have keys.
    pub fn house_key_file(&self) -> PathBuf {
        self.state_folder.join("house-key")
    }

    /// What was learnt of how clients' prompts change. Private text.
    pub fn layout_file(&self) -> PathBuf {
        self.state_folder.join("layout")
    }

    /// Another model than the configured one; it gets its own file's name unless a name was configured.
    pub fn set_model(&mut self, path: PathBuf) {
        let own_name = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        if own_name(&self.model.path).as_deref() == Some(&self.model.name)
            && let Some(name) = own_name(&path)
        {
            self.model.name = name;
        }
        self.model.path = path;
    }

    /// Like `load`, but goes on after faults, with the default in place of each faulty value, so that what depends on
    /// the others can be checked, too.
    pub fn examine(file: &Path) -> (Config, Vec<Fault>) {
        let mut faults = Faults::of(file);
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| {
            faults.key("", format!("cannot be read: {error}"));
            String::new()
        });
        if others_may_write(file) {
            faults.key("", "may be changed by every user of this machine, and names commands and keys: chmod o-w");
        }
        let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let surroundings = Surroundings {
            file: file.to_owned(),
            folder: absolute.parent().unwrap_or(Path::new("/")).to_owned(),
            state_folder: places::state_folder(),
            processors: Processors::here(),
            keys: credential(&mut faults),
        };
        let raw = Raw::read(&text, &mut faults);
        let config = check(raw, &surroundings, &mut faults);
        (config, faults.found)
    }
}

/// Whether any user may write `file`.
fn others_may_write(file: &Path) -> bool {
    const BY_OTHERS: u32 = 0o002;
    std::fs::metadata(file).is_ok_and(|of| of.is_file() && of.permissions().mode() & BY_OTHERS != 0)
}

/// What the service manager brought of keys.
fn credential(faults: &mut Faults) -> Option<String> {
    let path = Path::new(&std::env::var_os("CREDENTIALS_DIRECTORY")?).join(client::CREDENTIAL);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            faults.key(format!("credential {}", client::CREDENTIAL), format!("cannot be read: {error}"));
            None
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where it was read, as it was named.
    pub file: PathBuf,
    /// The file's folder, absolute.
    pub folder: PathBuf,
    /// Where hob keeps what it writes; not there before `private::create_folder`.
    pub state_folder: PathBuf,
    pub server: Server,
    pub model: Model,
    pub cache: Cache,
    pub layout: Layout,
    pub telemetry: Telemetry,
    pub profiles: Vec<ProfileFiles>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    pub listen: Vec<Listen>,
    /// Largest request body in bytes.
    pub max_body: u64,
    /// Waiting requests before 503.
    pub queue: usize,
    /// `/ready` says 200 with `degraded` after this even if pins are still warming.
    pub start_wait: Duration,
    pub access: Access,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    Tcp(std::net::SocketAddr),
    Unix(PathBuf),
}

/// As it is configured.
impl fmt::Display for Listen {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(formatter),
            Listen::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub path: PathBuf,
    /// Shown by `/v1/models`; default: the file's name without its ending.
    pub name: String,
    /// Cells shared by all conversations.
    pub context: usize,
    /// Conversations decoding at once.
    pub parallel: usize,
    pub gpu: Gpu,
    pub gpu_layers: GpuLayers,
    pub kv_type: KvType,
    /// Already resolved: at least 1, never more than this process may use.
    pub threads: Threads,
    /// Whether what repeats may be computed ahead of the model saying it.
    pub speculate: bool,
    /// A Jinja file that replaces the model's own template.
    pub chat_template: Option<PathBuf>,
    /// By number.
    pub adapters: Vec<Adapter>,
}

impl Model {
    /// The adapters as the planner knows them.
    pub fn known_adapters(&self) -> Vec<KnownAdapter> {
        let known = |Adapter { name, path: _, scale, is_default }: &Adapter| KnownAdapter {
            name: name.clone(),
            scale: *scale,
            is_default: *is_default,
        };
        self.adapters.iter().map(known).collect()
    }
}

/// A `[[model.adapter]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    pub name: String,
    /// A GGUF file.
    pub path: PathBuf,
    /// Where a request or a profile names it and gives none.
    pub scale: Scale,
    /// It counts where neither request nor profile says what does.
    pub is_default: bool,
}

/// What is kept below the cells.
#[derive(Clone, Debug, PartialEq)]
pub struct Cache {
    /// Of the files.
    pub folder: PathBuf,
    /// In bytes; 0: nothing is kept there.
    pub ram: u64,
    pub disk: u64,
    /// The part of `disk` that learned pins may hold.
    pub learned_pins: f64,
    /// Days after which files that were not used are removed, unless they are pins.
    pub keep_days: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// Of requests that do not choose.
    pub mode: LayoutMode,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// The SQLite file.
    pub path: PathBuf,
    pub keep_days: u32,
    pub flush: Duration,
}

/// A `[[profile]]` as configured: files not read yet.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ProfileFiles {
    pub name: String,
    pub system: Option<PathBuf>,
    pub tools: Option<PathBuf>,
    /// Globs as configured, relative to the configuration's folder, in its order.
    pub documents: Vec<String>,
    pub max_tokens: Option<usize>,
    /// Whether the model thinks; `None`: as its template has it.
    pub thinking: Option<bool>,
    /// What its requests are computed under that do not say; `None`: the default ones.
    pub adapters: Option<AdapterSet>,
    /// What stands in front of each question, in this order.
    pub live: Vec<Entry>,
    /// The time does, too.
    pub has_clock: bool,
}

#[cfg(test)]
mod tests;
