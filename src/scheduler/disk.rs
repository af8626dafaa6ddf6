//! The scheduler's side of the tier on disk: a door to whoever writes and reads files. Nothing here waits.

use std::time::Duration;

use crate::engine::Limits;
use crate::kv::{Budgets, Segment, SegmentKey};
use crate::request::Owner;
use crate::snapshots::{Busy, Reporter, SnapshotsHandle};

/// Where segments go that outlive the daemon. Each answer comes as a `snapshots::Report` to the scheduler's inbox; the first one
/// is what lies there already.
pub trait Disk: Send {
    fn write(&self, segment: Segment) -> Result<(), Busy>;
    fn read(&self, key: SegmentKey) -> Result<(), Busy>;
    fn remove(&self, key: SegmentKey) -> Result<(), Busy>;
    /// It was of use now.
    fn touch(&self, key: SegmentKey);
    /// All files of `owner`'s client go; `None`: of all clients.
    fn forget(&self, owner: Option<Owner>) -> Result<(), Busy>;
}

impl Disk for SnapshotsHandle {
    fn write(&self, segment: Segment) -> Result<(), Busy> {
        SnapshotsHandle::write(self, segment)
    }

    fn read(&self, key: SegmentKey) -> Result<(), Busy> {
        SnapshotsHandle::read(self, key)
    }

    fn remove(&self, key: SegmentKey) -> Result<(), Busy> {
        SnapshotsHandle::remove(self, key)
    }

    fn touch(&self, key: SegmentKey) {
        SnapshotsHandle::touch(self, key);
    }

    fn forget(&self, owner: Option<Owner>) -> Result<(), Busy> {
        SnapshotsHandle::forget(self, owner)
    }
}

/// The tiers below the cells.
#[derive(Default)]
pub struct Lower {
    pub budgets: Budgets,
    /// `None`: what is saved does not outlive the daemon.
    pub disk: Option<Box<dyn Disk>>,
    /// How long nobody is admitted before it is told what lies on disk. What is told later is used from then on.
    pub wait: Duration,
}

/// What is known only when the context stands.
#[derive(Clone, Debug)]
pub struct Opened {
    pub limits: Limits,
    /// What saved bytes depend on beside the model's files.
    pub saved_form: String,
}

/// Opens the tiers when the context stands: only then is known how much memory is left, and what files must have been saved
/// under. Called once, on the scheduler's thread.
pub type OpenLower = Box<dyn FnOnce(&Opened, Reporter) -> Lower + Send>;
