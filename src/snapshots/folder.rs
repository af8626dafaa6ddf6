//! The folder that containers lie in: written so that what can be seen is whole, swept when the daemon starts.
//!
//! A file is named after its segment's key. A crash at any moment leaves the old state or the new one (`private`), and at most a
//! temporary file, which the next sweep removes.

use std::fs::{self, File, FileTimes, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::container::{self, Fault, Refused, Secret};
use super::identity::Identity;
use crate::kv::{Header, Kept, Segment, SegmentKey};
use crate::private::{WriteStep, create_folder, write_in_steps};
use crate::request::Owner;

const ENDING: &str = "kv";
/// By this file backup programs know that the folder need not be saved, <https://bford.info/cachedir/>.
const TAG: &str = "CACHEDIR.TAG";
const TAG_TEXT: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# K/V that hob computes again if it is lost.\n";
/// Large enough that the header's few hundred bytes do not cost a call each.
const BUFFER_BYTES: usize = 64 << 10;

pub struct Folder {
    place: Place,
    identity: Identity,
    secret: Secret,
}

/// The folder before it is known what its files must have been written under.
pub struct Place {
    path: PathBuf,
    /// Held open for its lock: two daemons would sweep each other's files away.
    _lock: File,
}

impl Place {
    /// Makes the folder where it is missing. One that another `Place` holds, in any process, is refused.
    pub fn open(path: PathBuf) -> io::Result<Place> {
        make(&path)?;
        let lock = File::open(&path)?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other(
                    "another hob that runs uses this folder: cache.dir can name one of its own",
                ));
            }
            // Some file systems have no locks.
            Err(TryLockError::Error(error)) => tracing::debug!(%error, "the K/V folder is not locked"),
            Ok(()) => {}
        }
        Ok(Place { path, _lock: lock })
    }

    pub fn with(self, identity: Identity, secret: Secret) -> Folder {
        Folder { place: self, identity, secret }
    }
}

/// What a sweep found.
#[derive(Debug, Default)]
pub struct Swept {
    pub found: Vec<Found>,
    pub dropped: Vec<Dropped>,
}

/// A file that is whole as far as its header tells; its K/V is verified when it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub header: Header,
    pub n_file_bytes: u64,
    pub used: SystemTime,
}

/// A file that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    pub file: String,
    pub reason: String,
    pub because: Because,
    /// What it held, where that could be told.
    pub header: Option<Box<Header>>,
}

/// The kind of `Dropped::reason`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Because {
    /// It was not used for `keep`.
    Old,
    /// This fact of the identity is another one now.
    Changed(String),
    /// It is not what hob writes, or not any more.
    Damaged,
}

impl Folder {
    /// Makes the folder where it is missing. One that another `Folder` uses, in any process, is refused.
    pub fn open(path: PathBuf, identity: Identity, secret: Secret) -> io::Result<Folder> {
        Ok(Place::open(path)?.with(identity, secret))
    }

    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Bytes that `header`'s file will have.
    pub fn n_file_bytes(&self, header: &Header) -> u64 {
        container::n_file_bytes(header, &self.identity)
    }

    /// Removes temporary files, what is damaged, of another house or identity, and what is neither a pin nor was used for `keep`;
    /// lists the rest.
    pub fn sweep(&self, now: SystemTime, keep: Duration) -> io::Result<Swept> {
        let mut swept = Swept::default();
        for entry in fs::read_dir(self.path())? {
            let path = entry?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if file == TAG {
                continue;
            }
            let (reason, because, header) = match self.look_at(&path, now, keep) {
                Ok(found) => {
                    swept.found.push(found);
                    continue;
                }
                Err(refused) => refused,
            };
            // One that stays is not used either: it is not in `found`.
            if let Err(error) = remove_if_there(&path) {
                tracing::warn!(%error, file, "a K/V file cannot be removed");
            }
            swept.dropped.push(Dropped { file, reason, because, header });
        }
        Ok(swept)
    }

    /// Writes `segment`'s file, over one that is there; its length in bytes. `after` is told of each step.
    pub fn write(&self, segment: &Segment, after: &mut dyn FnMut(WriteStep)) -> io::Result<u64> {
        let n_file_bytes = self.n_file_bytes(&segment.header);
        write_in_steps(&self.place(segment.header.key), after, |file, after| {
            let out = BufWriter::with_capacity(BUFFER_BYTES, file);
            let mut out = Halfway { out, n_written: 0, n_half: n_file_bytes / 2, after };
            container::write(segment, &self.identity, &self.secret, &mut out)?;
            out.flush()
        })?;
        Ok(n_file_bytes)
    }

    /// Reads and verifies the file of `key`. One with a fault is removed; `None`: there is none.
    pub fn read(&self, key: SegmentKey) -> Result<Option<Segment>, Fault> {
        let path = self.place(key);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Fault::Io(error)),
        };
        let read = self.read_file(file, key);
        if read.is_err() {
            let _ = fs::remove_file(&path);
        }
        read.map(Some)
    }

    pub fn remove(&self, key: SegmentKey) -> io::Result<()> {
        remove_if_there(&self.place(key))
    }

    /// Notes that `key` was used at `now`.
    pub fn touch(&self, key: SegmentKey, now: SystemTime) -> io::Result<()> {
        match OpenOptions::new().append(true).open(self.place(key)) {
            Ok(file) => file.set_times(FileTimes::new().set_modified(now)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes what belongs to `owner`'s client; `None`: to any client, but not what is the house's. The keys that went. Files
    /// that nobody can read go as well.
    pub fn forget(&self, owner: Option<Owner>) -> io::Result<Vec<SegmentKey>> {
        let mut gone = Vec::new();
        for entry in fs::read_dir(self.path())? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name == TAG) {
                continue;
            }
            let header = match self.header_of(&path) {
                Ok((header, _)) => Some(header),
                Err(refused) => refused.header.map(|header| *header),
            };
            let is_meant = |header: &Header| match owner {
                Some(owner) => header.holder.owner.is_client_of(owner),
                None => header.holder.owner != Owner::Public,
            };
            if header.as_ref().is_some_and(|header| !is_meant(header)) {
                continue;
            }
            remove_if_there(&path)?;
            gone.extend(header.map(|header| header.key));
        }
        File::open(self.path())?.sync_all()?;
        Ok(gone)
    }

    /// Makes the folder anew after somebody removed it.
    pub(super) fn make(&self) -> io::Result<()> {
        make(self.path())
    }

    fn place(&self, key: SegmentKey) -> PathBuf {
        self.path().join(key.hex()).with_extension(ENDING)
    }

    fn read_file(&self, file: File, key: SegmentKey) -> Result<Segment, Fault> {
        let n_file_bytes = file.metadata()?.len();
        let mut input = BufReader::with_capacity(BUFFER_BYTES, file);
        let segment = container::read(&mut input, n_file_bytes, &self.identity, &self.secret);
        let segment = segment.map_err(|refused| refused.fault)?;
        if segment.header.key == key { Ok(segment) } else { Err(Fault::Name) }
    }

    fn look_at(&self, path: &Path, now: SystemTime, keep: Duration) -> Result<Found, NotUsed> {
        let refused = |Refused { fault, header }: Refused| match fault {
            Fault::Identity(mismatch) => (mismatch.to_string(), Because::Changed(mismatch.name), header),
            fault => (fault.to_string(), Because::Damaged, header),
        };
        let (header, metadata) = self.header_of(path).map_err(refused)?;
        if path != self.place(header.key) {
            return Err((Fault::Name.to_string(), Because::Damaged, None));
        }
        // A clock that was set back makes nothing old.
        let used = metadata.modified().unwrap_or(now);
        let age = now.duration_since(used).unwrap_or_default();
        if header.kept != Kept::Pin && age > keep {
            let days = age.as_secs() / (24 * 3600);
            return Err((format!("it was not used for {days} days"), Because::Old, Some(Box::new(header))));
        }
        Ok(Found { header, n_file_bytes: metadata.len(), used })
    }

    fn header_of(&self, path: &Path) -> Result<(Header, fs::Metadata), Refused> {
        let refused = |error: io::Error| Refused { fault: Fault::Io(error), header: None };
        let file = File::open(path).map_err(refused)?;
        let metadata = file.metadata().map_err(refused)?;
        let mut input = BufReader::with_capacity(BUFFER_BYTES, file);
        let header = container::read_header(&mut input, metadata.len(), &self.identity, &self.secret)?;
        Ok((header, metadata))
    }
}

fn make(path: &Path) -> io::Result<()> {
    create_folder(path)?;
    let tag = path.join(TAG);
    if !tag.exists() {
        fs::write(tag, TAG_TEXT)?;
    }
    Ok(())
}

/// The fields of a `Dropped` beside its file.
type NotUsed = (String, Because, Option<Box<Header>>);

/// Tells once that half of the bytes are written.
struct Halfway<'a, W> {
    out: W,
    n_written: u64,
    n_half: u64,
    after: &'a mut dyn FnMut(WriteStep),
}

impl<W: Write> Write for Halfway<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        let was_before = self.n_written < self.n_half;
        self.n_written += n as u64;
        if was_before && self.n_written >= self.n_half {
            self.out.flush()?;
            (self.after)(WriteStep::Begun);
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        _ => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
