//! One reading of one source: bounded in bytes and time, checked to be text.
//!
//! A *reading* that takes too long is given up; a command's whole process group is killed then.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use ureq::http::Uri;

use super::{Entry, LoopbackUrl, Source};

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot be run: {0}")]
    Run(io::Error),
    #[error("ended with {0}")]
    Exit(ExitStatus),
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("is not a file")]
    NotAFile,
    #[error("cannot be reached: {0}")]
    Http(Box<ureq::Error>),
    #[error("answered with {0}")]
    Status(u16),
    #[error("gives more than {n_bytes_max} bytes; raise its `max`, or shorten it")]
    TooLong { n_bytes_max: u64 },
    #[error("is not UTF-8")]
    NotUtf8,
    #[error("was not done within {timeout:?}")]
    Slow { timeout: Duration },
}

impl LoopbackUrl {
    /// `text` if it is an address on the loopback. No name is looked up, so that none can lead elsewhere: `localhost` is
    /// 127.0.0.1.
    pub fn parse(text: &str) -> Result<LoopbackUrl, &'static str> {
        const FORM: &str = "must be an address like \"http://127.0.0.1:8123/path\"";
        const LOOPBACK: &str = "must be on this machine: its host must be localhost, 127.0.0.1 or [::1]";
        let uri: Uri = text.parse().map_err(|_| FORM)?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or(FORM)?;
        if authority.as_str().contains('@') {
            return Err(FORM);
        }
        let host = authority.host();
        let ip = match host.trim_start_matches('[').trim_end_matches(']') {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.parse().map_err(|_| LOOPBACK)?,
        };
        if !ip.to_canonical().is_loopback() {
            return Err(LOOPBACK);
        }
        let host = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
        let port = authority.port_u16().unwrap_or(80);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(LoopbackUrl(format!("http://{host}:{port}{path}")))
    }
}

/// The text that `entry` gives now, trimmed, with plain line feeds.
pub(super) async fn read(entry: &Entry) -> Result<String, ReadError> {
    let Entry { source, timeout, n_bytes_max, .. } = entry;
    let (timeout, n_bytes_max) = (*timeout, *n_bytes_max);
    let reading = async {
        match source {
            Source::Command(command) => run(command, n_bytes_max).await,
            Source::File(path) => {
                blocking({
                    let path = path.clone();
                    move || read_file(path, n_bytes_max)
                })
                .await
            }
            Source::Url(url) => {
                blocking({
                    let url = url.clone();
                    move || get(&url, timeout, n_bytes_max)
                })
                .await
            }
        }
    };
    let bytes = tokio::time::timeout(timeout, reading).await.map_err(|_| ReadError::Slow { timeout })??;
    if bytes.len() as u64 > n_bytes_max {
        return Err(ReadError::TooLong { n_bytes_max });
    }
    let text = String::from_utf8(bytes).map_err(|_| ReadError::NotUtf8)?;
    Ok(text.trim_start_matches('\u{feff}').trim().replace("\r\n", "\n"))
}

/// Work that waits in the operating system, on a thread for such.
async fn blocking(work: impl FnOnce() -> Result<Vec<u8>, ReadError> + Send + 'static) -> Result<Vec<u8>, ReadError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error).into()))
}

/// All that `command` writes, at most one byte more than allowed. Dropped before its end, it takes its processes along.
async fn run(command: &[String], n_bytes_max: u64) -> Result<Vec<u8>, ReadError> {
    let Some((program, arguments)) = command.split_first() else { return Ok(Vec::new()) };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(ReadError::Run)?;
    // Dropped before the child, so that its number is still its own.
    let mut killer = Killer(child.id().and_then(|id| Pid::from_raw(id as i32)));
    let mut bytes = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(n_bytes_max + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > n_bytes_max {
        return Ok(bytes);
    }
    let status = child.wait().await?;
    killer.0 = None;
    if status.success() { Ok(bytes) } else { Err(ReadError::Exit(status)) }
}

/// Kills a process group when it is dropped.
struct Killer(Option<Pid>);

impl Drop for Killer {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may have ended by itself just now.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn read_file(path: PathBuf, n_bytes_max: u64) -> Result<Vec<u8>, ReadError> {
    // Asked before opening: to open a pipe would wait for its writer.
    if !path.metadata()?.is_file() {
        return Err(ReadError::NotAFile);
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(n_bytes_max + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn get(LoopbackUrl(url): &LoopbackUrl, timeout: Duration, n_bytes_max: u64) -> Result<Vec<u8>, ReadError> {
    // Neither a redirect nor a proxy may lead to another machine.
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .timeout_global(Some(timeout))
        .build()
        .new_agent();
    let response = agent.get(url).call().map_err(|error| ReadError::Http(Box::new(error)))?;
    if !response.status().is_success() {
        return Err(ReadError::Status(response.status().as_u16()));
    }
    let mut bytes = Vec::new();
    response.into_body().into_reader().take(n_bytes_max + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
