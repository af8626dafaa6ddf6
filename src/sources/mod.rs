//! What the house can be asked about itself: commands, files and addresses on this machine, read again and again.
//!
//! A *source* is where one value comes from, a *reading* what came last. One thread, `hob-live`, reads all of them in the
//! background; whoever needs values looks at the readings and never waits. What fails keeps its last text and says since
//! when; it is logged once. Nothing here knows what values are for.

mod read;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

pub use read::ReadError;

/// A value that is read anew every `refresh`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub source: Source,
    pub refresh: Duration,
    /// For one reading.
    pub timeout: Duration,
    /// More is a failure: half a text would be another one.
    pub n_bytes_max: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A program and its arguments, run without a shell; its output is the value.
    Command(Vec<String>),
    File(PathBuf),
    Url(LoopbackUrl),
}

/// An `http://` address that cannot lead to another machine: its host is an IP address of the loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopbackUrl(String);

/// All readings, as they are now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readings(pub Vec<Group>);

/// The readings of one profile, in the order of its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub readings: Vec<Reading>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub name: String,
    /// Trimmed; empty until it was read.
    pub text: Arc<str>,
    /// When it was last read, in Unix time.
    pub read_at: Option<i64>,
    /// Why it could not be read last time.
    pub failure: Option<String>,
}

/// The running thread; dropping it ends it.
pub struct Sources {
    readings: watch::Receiver<Readings>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sources {
    /// Reads `entries` of each name from now on.
    pub fn start(groups: Vec<(String, Vec<Entry>)>) -> std::io::Result<Sources> {
        let reading = |entry: &Entry| Reading { name: entry.name.clone(), ..Reading::default() };
        let group = |(name, entries): &(String, Vec<Entry>)| Group {
            name: name.clone(),
            readings: entries.iter().map(reading).collect(),
        };
        let (sender, readings) = watch::channel(Readings(groups.iter().map(group).collect()));
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("hob-live".to_owned()).spawn(move || {
            let sender = Arc::new(sender);
            for (group_idx, (name, entries)) in groups.into_iter().enumerate() {
                for (entry_idx, entry) in entries.into_iter().enumerate() {
                    runtime.spawn(follow(sender.clone(), (group_idx, entry_idx), name.clone(), entry));
                }
            }
            // An error is the stop, too: whoever could have sent it is gone.
            let _ = runtime.block_on(stopped);
            // Commands end with their tasks; an address that does not answer is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Sources { readings, stop: Some(stop), thread: Some(thread) })
    }

    /// To look at what was read.
    pub fn readings(&self) -> watch::Receiver<Readings> {
        self.readings.clone()
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the thread of live values had ended by a panic");
        }
    }
}

impl Readings {
    /// Of the group called `name`, in its order.
    pub fn of(&self, name: &str) -> &[Reading] {
        self.0.iter().find(|group| group.name == name).map_or(&[], |group| &group.readings)
    }
}

/// Reads `entry` once, now, as the thread would.
pub fn read_once(entry: &Entry) -> Result<String, ReadError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ReadError::Read)?;
    let read = runtime.block_on(read::read(entry));
    runtime.shutdown_background();
    read
}

/// Reads one entry for ever. The next reading begins `refresh` after the last one ended: there is never more than one.
async fn follow(sender: Arc<watch::Sender<Readings>>, (group, at): (usize, usize), profile: String, entry: Entry) {
    let mut fails = false;
    loop {
        let read = read::read(&entry).await;
        match &read {
            Ok(_) if fails => info!(profile, name = entry.name, "a live value can be read again"),
            Err(error) if !fails => {
                warn!(profile, name = entry.name, %error, "a live value cannot be read; the last one stays, marked with its age");
            }
            _ => {}
        }
        fails = read.is_err();
        sender.send_if_modified(|readings| {
            let reading = &mut readings.0[group].readings[at];
            match read {
                Ok(text) => {
                    let has_changed = *reading.text != text || reading.failure.is_some();
                    reading.text = text.into();
                    reading.read_at = Some(now());
                    reading.failure = None;
                    has_changed
                }
                Err(error) => {
                    let is_new = reading.failure.is_none();
                    reading.failure = Some(error.to_string());
                    is_new
                }
            }
        });
        tokio::time::sleep(entry.refresh).await;
    }
}

/// Unix time; 0 on a machine that believes to be before 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs() as i64)
}
