//! The file that what the planner learnt outlives a restart in.
//!
//! It is private text. It is written and read whole or not at all: without it prompts cost more tokens, and are as true.
//! What stands in it, `kept` knows.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::private::{create_folder, write_whole};

/// Rises when the file's meaning changes.
const HEAD: &str = "hob live 2";
/// Four times what is kept in memory, because as text it is longer by escapes and names; a file above this is not ours.
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

/// Writes `learnt` to `path`.
pub(super) fn save(path: &Path, learnt: &impl Serialize) -> Result<(), StoreError> {
    let failed = |error| StoreError::Io { path: path.to_path_buf(), error };
    let body = serde_json::to_vec(learnt).map_err(|error| failed(error.into()))?;
    if let Some(folder) = path.parent() {
        create_folder(folder).map_err(failed)?;
    }
    let written = write_whole(path, |file| {
        writeln!(file, "{HEAD} {}", blake3::hash(&body).to_hex())?;
        file.write_all(&body)
    });
    written.map_err(failed)
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
