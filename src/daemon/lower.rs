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
use crate::snapshots::{Folder, Identity, Reporter, Secret, Snapshots, SnapshotsHandle, hash_weights};

/// In the state folder: which hash each model file had, so that gigabytes are not read at each start.
const WEIGHTS: &str = "weights";

/// What the thread needs, out of the configuration.
pub(super) struct Settings {
    cache: crate::config::Cache,
    state_folder: PathBuf,
    model: PathBuf,
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
            kv_type: config.model.kv_type,
            weight_bytes: facts.weight_bytes,
            compute_bytes: facts.compute_bytes(config.model.context as u64, n_batch),
        }
    }

    /// Called when the context stands: what is available then is available to the tiers.
    pub(super) fn open(self, opened: &Opened, reporter: Reporter, running: &mpsc::SyncSender<Running>) -> Lower {
        let ram = self.fit_ram(available_memory());
        let disk = if self.cache.disk == 0 { None } else { self.open_disk(opened, reporter) };
        let disk_budget = if disk.is_some() { self.cache.disk } else { 0 };
        let learned = (disk_budget as f64 * self.cache.learned_pins) as u64;
        let disk = disk.map(|(door, thread)| {
            // The daemon waits for it, or it has gone and nobody does.
            let _ = running.send((door.clone(), thread));
            Box::new(door) as Box<dyn crate::scheduler::Disk>
        });
        Lower { budgets: Budgets { ram, disk: disk_budget, learned }, disk }
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

    fn open_disk(&self, opened: &Opened, reporter: Reporter) -> Option<Running> {
        let folder = &self.cache.folder;
        if !folder.is_absolute() {
            warn!("this user has no state folder: K/V is not kept on disk; cache.dir can name a folder");
            return None;
        }
        let started = self.identity(opened).and_then(|identity| {
            let secret = Secret::load(&self.state_folder)?;
            let folder = Folder::open(folder.clone(), identity, secret)?;
            let keep = Duration::from_secs(u64::from(self.cache.keep_days) * 24 * 60 * 60);
            let (door, inbox) = SnapshotsHandle::new();
            let snapshots = Snapshots::new(folder, keep, reporter);
            Ok((door, super::spawn("hob-snapshots", move || snapshots.run(inbox))?))
        });
        match started {
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

    /// Everything that K/V depends on beside the tokens.
    fn identity(&self, opened: &Opened) -> std::io::Result<Identity> {
        crate::private::create_folder(&self.state_folder)?;
        let model = hash_weights(&self.model, &self.state_folder.join(WEIGHTS))?;
        let facts = vec![
            (MODEL, model.to_hex().to_string()),
            (KV_TYPE, self.kv_type.name().to_owned()),
            ("context", opened.saved_form.replace('\n', " ")),
        ];
        Ok(Identity::new(facts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ram_tier_that_does_not_fit_is_made_smaller() {
        let cache =
            crate::config::Cache { folder: PathBuf::new(), ram: 1 << 30, disk: 0, learned_pins: 0.0, keep_days: 1 };
        let settings = Settings {
            cache,
            state_folder: PathBuf::new(),
            model: PathBuf::new(),
            kv_type: KvType::F16,
            weight_bytes: 500 << 20,
            compute_bytes: 100 << 20,
        };
        assert_eq!(settings.fit_ram(None), 1 << 30);
        assert_eq!(settings.fit_ram(Some(4 << 30)), 1 << 30);
        assert_eq!(settings.fit_ram(Some(1 << 30)), 168 << 20);
        assert_eq!(settings.fit_ram(Some(100 << 20)), 0);
    }
}
