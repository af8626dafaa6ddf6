//! The file that families and records outlive a restart in.
//!
//! It is private text (R14): its folder is 0700 and the file 0600. It is written whole beside its place and renamed, and
//! it is read whole or not at all: without it prompts cost more tokens, and are as true.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::family::Family;
use super::records::{Record, RecordId};
use super::{Live, N_BYTES_MAX};

/// Rises when the file's meaning changes.
const HEAD: &str = "hob live 2";
/// As text, records are longer than in memory by escapes and names; a file above this is not ours.
const FILE_BYTES_MAX: u64 = 4 * N_BYTES_MAX as u64;

/// Why a file was not written or not read. A file that is not there is no error.
#[derive(Debug, thiserror::Error)]
pub(in crate::prompt) enum StoreError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} was written by another version of hob (`{head}`, this one writes `{HEAD}`); ignored")]
    Version { path: PathBuf, head: String },
    #[error("{path} is damaged: {reason}; ignored")]
    Damaged { path: PathBuf, reason: String },
}

#[derive(Serialize)]
struct Saved<'a> {
    next_family: u64,
    families: &'a [Family],
    records: Vec<(RecordId, &'a Record)>,
}

#[derive(Deserialize)]
struct Loaded {
    next_family: u64,
    families: Vec<Family>,
    records: Vec<(RecordId, Record)>,
}

impl Live {
    /// Writes all to `path`: temporary file, fsync, rename, fsync of the folder.
    pub(in crate::prompt) fn save(&self, path: &Path) -> Result<(), StoreError> {
        let failed = |error| StoreError::Io { path: path.to_path_buf(), error };
        let saved =
            Saved { next_family: self.next_family, families: &self.families, records: self.records.iter().collect() };
        let body = serde_json::to_vec(&saved).map_err(|error| failed(error.into()))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        if !folder.as_os_str().is_empty() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        }
        let temporary = path.with_extension("tmp");
        // One that a crash left behind might have another mode.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary).map_err(failed)?;
        let written = writeln!(file, "{HEAD} {}", blake3::hash(&body).to_hex())
            .and_then(|()| file.write_all(&body))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&temporary, path));
        if let Err(error) = written {
            // Half a file is worth nothing; that it cannot be removed either says nothing new.
            let _ = fs::remove_file(&temporary);
            return Err(failed(error));
        }
        if !folder.as_os_str().is_empty() {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        }
        Ok(())
    }

    /// What `save` wrote to `path`; empty if there is nothing.
    pub(in crate::prompt) fn load(path: &Path) -> Result<Live, StoreError> {
        let damaged = |reason: String| StoreError::Damaged { path: path.to_path_buf(), reason };
        let failed = |error| StoreError::Io { path: path.to_path_buf(), error };
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Live::default()),
            Err(error) => return Err(failed(error)),
            Ok(metadata) if metadata.len() > FILE_BYTES_MAX => {
                return Err(damaged(format!("{} bytes are more than {FILE_BYTES_MAX}", metadata.len())));
            }
            Ok(_) => {}
        }
        let bytes = fs::read(path).map_err(failed)?;
        let end = bytes.iter().position(|&byte| byte == b'\n').ok_or_else(|| damaged("it has no head".into()))?;
        let (head, body) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end + 1..]);
        let Some((_, checksum)) = head.rsplit_once(' ').filter(|(version, _)| *version == HEAD) else {
            let head = head.chars().take(40).collect();
            return Err(StoreError::Version { path: path.to_path_buf(), head });
        };
        if checksum != blake3::hash(body).to_hex().as_str() {
            return Err(damaged("its checksum is another".into()));
        }
        let loaded: Loaded = serde_json::from_slice(body).map_err(|error| damaged(error.to_string()))?;
        if !loaded.families.iter().all(Family::is_whole) {
            return Err(damaged("a family has no layout".into()));
        }
        let mut live = Live { families: loaded.families, next_family: loaded.next_family, ..Live::default() };
        live.families.iter_mut().for_each(Family::weigh);
        for (id, record) in loaded.records {
            live.records.restore(id, record);
        }
        Ok(live)
    }
}
