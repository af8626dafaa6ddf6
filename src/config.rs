//! The configuration: TOML → checked values. A leaf.
//!
//! Every error names file, key, value and what would be accepted. Paths are made absolute against the file's folder.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::engine::KvType;

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub server: Server,
    pub model: Model,
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
    /// Written out to listen beyond the loopback: there are no keys yet.
    pub allow_anonymous: bool,
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
    /// Already resolved: at least 1.
    pub threads: usize,
    /// A Jinja file that replaces the model's own template.
    pub chat_template: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpu {
    Auto,
    Required,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuLayers {
    All,
    Count(u32),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// The SQLite file.
    pub path: PathBuf,
    pub keep_days: u32,
    pub flush: Duration,
}

/// A `[[profile]]` as configured: files not read yet.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileFiles {
    pub name: String,
    pub system: Option<PathBuf>,
    pub tools: Option<PathBuf>,
    /// Globs, in the order of the configuration.
    pub documents: Vec<String>,
    pub max_tokens: Option<usize>,
}
