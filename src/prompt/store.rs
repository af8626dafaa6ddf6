//! The file that what the planner learnt outlives a restart in.
//!
//! It is private text (R14): its folder is 0700 and the file 0600. It is written whole beside its place and renamed, and
//! it is read whole or not at all: without it prompts cost more tokens, and are as true. What stands in it, `kept` knows.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Rises when the file's meaning changes.
const HEAD: &str = "hob live 2";
/// Four times what is kept in memory (R14), because as text it is longer by escapes and names; a file above this is not ours.
const FILE_BYTES_MAX: u64 = 4 * (32 << 20);

/// Why a file was not written or not read. A file that is not there is no error.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} was written by another version of hob (`{head}`, this one writes `{HEAD}`); ignored")]
    Version { path: PathBuf, head: String },
    #[error("{path} is damaged: {reason}; ignored")]
    Damaged { path: PathBuf, reason: String },
}

/// Writes `learnt` to `path`: temporary file, fsync, rename, fsync of the folder.
pub(super) fn save(path: &Path, learnt: &impl Serialize) -> Result<(), StoreError> {
    let failed = |error| StoreError::Io { path: path.to_path_buf(), error };
    let body = serde_json::to_vec(learnt).map_err(|error| failed(error.into()))?;
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

/// What `save` wrote to `path`; nothing if there is no file.
pub(super) fn load<T: DeserializeOwned + Default>(path: &Path) -> Result<T, StoreError> {
    let damaged = |reason: String| StoreError::Damaged { path: path.to_path_buf(), reason };
    let failed = |error| StoreError::Io { path: path.to_path_buf(), error };
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
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
    serde_json::from_slice(body).map_err(|error| damaged(error.to_string()))
}
