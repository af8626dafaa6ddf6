//! Opens the tiers below the cells as configured and as the machine allows: budgets, and the folder with its thread.
//!
//! What cannot be had is told in one line and done without: a house that answers slowly is better than one that does not.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{info, warn};

use super::chain;
use crate::config::{Config, available_memory, that_fits, write_size};
use crate::engine::{KvType, ModelFacts};
use crate::scheduler::{Budgets, Lower, Opened};
use crate::snapshots::identity::{KV_TYPE, MODEL};
use crate::snapshots::{
    Identity, Place, Reporter, Secret, Snapshots, SnapshotsHandle, hash_weights, remembered_weights,
};

/// In the state folder: which hash each model file had, so that gigabytes are not read at each start.
const WEIGHTS: &str = "weights";

/// How long the start waits to be told what lies on disk: hundreds of headers on a disk that has to spin up first.
const SWEEP_WAIT: Duration = Duration::from_secs(30);

/// The same where the model has to be read before: a second is enough for a gigabyte that is in memory already. A large one on a
/// slow disk takes minutes, in which profiles are computed sooner.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// What the thread needs, out of the configuration.
pub(super) struct Settings {
    cache: crate::config::Cache,
    state_folder: PathBuf,
    model: PathBuf,
    adapters: Vec<PathBuf>,
    kv_type: KvType,
    weight_bytes: u64,
    compute_bytes: u64,
}

/// The thread that owns the folder, with its door.
pub(super) type Running = (SnapshotsHandle, JoinHandle<()>);

impl Settings {
    pub(super) fn new(config: &Config, facts: &ModelFacts) -> Settings {
        let n_batch = crate::scheduler::n_batch(config.model.parallel) as u64;
        Settings {
            cache: config.cache.clone(),
            state_folder: config.state_folder.clone(),
            model: config.model.path.clone(),
            adapters: config.model.adapters.iter().map(|adapter| adapter.path.clone()).collect(),
            kv_type: config.model.kv_type,
            weight_bytes: facts.weight_bytes + facts.adapter_bytes,
            compute_bytes: facts.compute_bytes(config.model.context as u64, n_batch),
        }
    }

    /// Called when the context stands: what is available then is available to the tiers.
    pub(super) fn open(self, opened: &Opened, reporter: Reporter, running: &mpsc::SyncSender<Running>) -> Lower {
        let ram = self.fit_ram(available_memory());
        let memory = self.state_folder.join(WEIGHTS);
        let known = |path: &PathBuf| remembered_weights(path, &memory);
        let known = self.files().iter().map(known).collect::<Option<Vec<_>>>();
        let wait = if known.is_some() { SWEEP_WAIT } else { FIRST_WAIT };
        let disk = if self.cache.disk == 0 { None } else { self.open_disk(opened, known, reporter) };
        let disk_budget = if disk.is_some() { self.cache.disk } else { 0 };
        let learned = (disk_budget as f64 * self.cache.learned_pins) as u64;
        let disk = disk.map(|(door, thread)| {
            // The daemon waits for it, or it has gone and nobody does.
            let _ = running.send((door.clone(), thread));
            Box::new(door) as Box<dyn crate::scheduler::Disk>
        });
        Lower { budgets: Budgets { ram, disk: disk_budget, learned }, disk, wait }
    }

    /// The RAM budget, smaller than configured where less is available.
    fn fit_ram(&self, available: Option<u64>) -> u64 {
        let configured = self.cache.ram;
        let Some(available) = available else { return configured };
        // Weights are mapped files, which count as available: they must stay where they are.
        let left = that_fits(configured, available, self.weight_bytes + self.compute_bytes);
        if left == configured {
            return configured;
        }
        warn!(
            available = write_size(available >> 20 << 20),
            "cache.ram = \"{}\" does not fit: only {} are left beside model and context, and so much is used; \
             make it smaller or give hob more memory",
            write_size(configured),
            write_size(left)
        );
        left
    }

    /// What the numbers in K/V come from: the model, then its adapters.
    fn files(&self) -> Vec<PathBuf> {
        [&self.model].into_iter().chain(&self.adapters).cloned().collect()
    }

    /// `known`: the files' hashes. Where they have to be read, the thread answers when it has done so.
    fn open_disk(&self, opened: &Opened, known: Option<Vec<blake3::Hash>>, reporter: Reporter) -> Option<Running> {
        let folder = &self.cache.folder;
        if !folder.is_absolute() {
            warn!("this user has no state folder: K/V is not kept on disk; cache.dir can name a folder");
            return None;
        }
        let begin = || {
            crate::private::create_folder(&self.state_folder)?;
            let secret = Secret::load(&self.state_folder)?;
            let place = Place::open(folder.clone())?;
            let keep = Duration::from_secs(u64::from(self.cache.keep_days) * 24 * 60 * 60);
            let (door, inbox) = SnapshotsHandle::new();
            let (files, memory) = (self.files(), self.state_folder.join(WEIGHTS));
            let (kv_type, saved_form) = (self.kv_type, opened.saved_form.clone());
            let run = move || {
                let read = |path: &PathBuf| hash_weights(path, &memory, &|| !inbox.is_stopping());
                let hashes = match known {
                    Some(hashes) => Ok(hashes),
                    None => files.iter().map(read).collect::<std::io::Result<_>>(),
                };
                match hashes {
                    Ok(hashes) => {
                        let folder = place.with(identity(&hashes, kv_type, &saved_form), secret);
                        Snapshots::new(folder, keep, reporter).run(inbox);
                    }
                    Err(error) => {
                        warn!(%error, model = %files[0].display(), "its hash is not known: K/V is not kept on disk");
                        let folder = place.with(Identity::new(Vec::new()), secret);
                        Snapshots::new(folder, keep, reporter).end(&inbox);
                    }
                }
            };
            std::io::Result::Ok((door, super::spawn("hob-snapshots", run)?))
        };
        match begin() {
            Ok(running) => {
                info!(folder = %folder.display(), "K/V is kept on disk");
                Some(running)
            }
            Err(error) => {
                warn!(error = %chain(&error), folder = %folder.display(), "K/V is not kept on disk");
                None
            }
        }
    }
}

/// Everything that K/V depends on beside the tokens.
///
/// `files`: the hash of the model, then of each adapter.
fn identity(files: &[blake3::Hash], kv_type: KvType, saved_form: &str) -> Identity {
    let (model, adapters) = files.split_first().expect("there is a model");
    Identity::new(vec![
        (MODEL, model.to_hex().to_string()),
        (KV_TYPE, kv_type.name().to_owned()),
        ("context", saved_form.replace('\n', " ")),
    ])
    .with_adapters(adapters.to_vec())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::engine::{ContextOptions, Engine, Model, Threads, simulated::SimulatedModel};
    use crate::request::Owner;
    use crate::snapshots::Report;

    fn settings(folder: &Path, disk: u64) -> Settings {
        let cache =
            crate::config::Cache { folder: folder.join("kv"), ram: 1 << 30, disk, learned_pins: 0.0, keep_days: 1 };
        Settings {
            cache,
            state_folder: folder.to_owned(),
            model: folder.join("model.gguf"),
            adapters: Vec::new(),
            kv_type: KvType::F16,
            weight_bytes: 500 << 20,
            compute_bytes: 100 << 20,
        }
    }

    /// Opens the tiers; what the thread tells.
    fn open(folder: &Path) -> (Lower, mpsc::Receiver<Report>, Running) {
        let options =
            ContextOptions { n_cells: 64, n_seq_max: 1, n_batch: 8, kv_type: KvType::F16, threads: Threads::same(1) };
        let model = SimulatedModel::new();
        let engine = model.open(&options).unwrap();
        let opened = Opened { limits: engine.limits(), saved_form: engine.saved_form() };
        let (report, reports) = mpsc::sync_channel(16);
        let (running, threads) = mpsc::sync_channel(1);
        let reporter: Reporter = Box::new(move |told| drop(report.send(told)));
        let lower = settings(folder, 1 << 20).open(&opened, reporter, &running);
        (lower, reports, threads.try_recv().unwrap())
    }

    #[test]
    fn nobody_waits_long_for_a_model_that_is_read_for_the_first_time() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        // A pipe: who reads it waits until somebody writes.
        assert!(Command::new("mkfifo").arg(&model).status().unwrap().success());
        let (lower, reports, (door, thread)) = open(folder.path());
        assert_eq!(lower.wait, FIRST_WAIT);
        // What is asked meanwhile is done when it has been read.
        door.forget(Some(Owner::Private([1; 32]))).unwrap();
        assert!(reports.try_recv().is_err());
        std::fs::write(&model, "weights").unwrap();
        assert!(matches!(reports.recv().unwrap(), Report::Swept(_)));
        assert!(matches!(reports.recv().unwrap(), Report::Forgotten(_)));
        door.stop();
        thread.join().unwrap();
    }

    #[test]
    fn a_stop_does_not_wait_until_the_model_is_read_and_forgets_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        assert!(Command::new("mkfifo").arg(&model).status().unwrap().success());
        let (_lower, reports, (door, thread)) = open(folder.path());
        // Open, and never written to its end.
        let writer = std::fs::OpenOptions::new().write(true).open(&model).unwrap();
        door.forget(None).unwrap();
        let stopping = std::thread::spawn(move || door.stop());
        stopping.join().unwrap();
        std::io::Write::write_all(&mut &writer, b"weights").unwrap();
        thread.join().unwrap();
        assert!(matches!(reports.recv().unwrap(), Report::Forgotten(_)));
        drop(writer);
    }

    #[test]
    fn files_of_a_model_that_was_read_before_are_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.gguf"), "weights").unwrap();
        for wait in [FIRST_WAIT, SWEEP_WAIT] {
            let (lower, reports, (door, thread)) = open(folder.path());
            assert_eq!(lower.wait, wait);
            assert!(matches!(reports.recv().unwrap(), Report::Swept(_)));
            door.stop();
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_ram_tier_that_does_not_fit_is_made_smaller() {
        let settings = settings(Path::new("/nowhere"), 0);
        assert_eq!(settings.fit_ram(None), 1 << 30);
        assert_eq!(settings.fit_ram(Some(4 << 30)), 1 << 30);
        assert_eq!(settings.fit_ram(Some(1 << 30)), 168 << 20);
        assert_eq!(settings.fit_ram(Some(100 << 20)), 0);
    }
}
