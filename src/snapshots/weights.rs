//! Which weights a file holds: the BLAKE3 of all its bytes, read once.
//!
//! A model of gigabytes takes seconds to minutes to read, so its hash is remembered under what changes with its content: device,
//! inode, size, and the times of change. A file that was swapped and dated back is noticed by ctime.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::private::write_whole;

/// Lines of the memory kept: models a house has tried.
const N_LINES_MAX: usize = 64;

/// Read at once: little enough that a stop is not waited for on a slow disk.
const READ_BYTES: usize = 1 << 20;

/// The hash of the model at `path`, and of its further parts where it is split (`…-00001-of-00003.gguf`). `memory` is a file to
/// remember it in; one that cannot be used costs time only. It ends with an error when `goes_on` says no.
pub fn hash_weights(path: &Path, memory: &Path, goes_on: &dyn Fn() -> bool) -> io::Result<blake3::Hash> {
    hash_parts(path, |part| match remembered(part, memory)? {
        (_, Some(hash)) => Ok(hash),
        (stamp, None) => {
            let hash = read_hash(part, goes_on)?;
            remember(&stamp, hash, memory);
            Ok(hash)
        }
    })
}

/// The same, if nothing has to be read for it.
pub fn remembered_weights(path: &Path, memory: &Path) -> Option<blake3::Hash> {
    let unknown = || io::Error::other("it has to be read");
    hash_parts(path, |part| remembered(part, memory)?.1.ok_or_else(unknown)).ok()
}

fn hash_parts(path: &Path, hash: impl Fn(&Path) -> io::Result<blake3::Hash>) -> io::Result<blake3::Hash> {
    let parts = parts(path);
    if let [only] = parts.as_slice() {
        return hash(only);
    }
    let mut hasher = blake3::Hasher::new();
    for part in &parts {
        hasher.update(hash(part)?.as_bytes());
    }
    Ok(hasher.finalize())
}

/// What is remembered of a file under its stamp, with that.
fn remembered(path: &Path, memory: &Path) -> io::Result<(String, Option<blake3::Hash>)> {
    let stamp = stamp(&fs::metadata(path)?);
    let lines = fs::read_to_string(memory).unwrap_or_default();
    let known = lines.lines().find_map(|line| line.strip_prefix(&stamp)?.strip_prefix(' '));
    let hash = known.and_then(|hash| blake3::Hash::from_hex(hash).ok());
    Ok((stamp, hash))
}

fn remember(stamp: &str, hash: blake3::Hash, memory: &Path) {
    let lines = fs::read_to_string(memory).unwrap_or_default();
    let kept = lines.lines().take(N_LINES_MAX - 1).map(|line| format!("{line}\n"));
    let text: String = std::iter::once(format!("{stamp} {}\n", hash.to_hex())).chain(kept).collect();
    if let Err(error) = write_whole(memory, |file| file.write_all(text.as_bytes())) {
        tracing::debug!(%error, "the model's hash is not remembered");
    }
}

fn read_hash(path: &Path, goes_on: &dyn Fn() -> bool) -> io::Result<blake3::Hash> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut bytes = vec![0; READ_BYTES];
    while goes_on() {
        match file.read(&mut bytes) {
            Ok(0) => return Ok(hasher.finalize()),
            Ok(n_bytes) => drop(hasher.update(&bytes[..n_bytes])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("it was not read to its end"))
}

fn stamp(metadata: &Metadata) -> String {
    let (modified, changed) = ((metadata.mtime(), metadata.mtime_nsec()), (metadata.ctime(), metadata.ctime_nsec()));
    format!(
        "{}:{}:{}:{}.{:09}:{}.{:09}",
        metadata.dev(),
        metadata.ino(),
        metadata.size(),
        modified.0,
        modified.1,
        changed.0,
        changed.1
    )
}

/// All files of a split model, if `path` is named like the first of them and they exist.
fn parts(path: &Path) -> Vec<PathBuf> {
    let numbered = || {
        let stem = path.file_stem()?.to_str()?;
        let (front, n_parts) = stem.rsplit_once("-of-")?;
        let name = front.strip_suffix("-00001")?;
        let n: usize = n_parts.parse().ok().filter(|_| n_parts.len() == 5)?;
        let part = |number| path.with_file_name(format!("{name}-{number:05}-of-{n_parts}.gguf"));
        Some((1..=n).map(part).collect::<Vec<_>>())
    };
    numbered()
        .filter(|parts| !parts.is_empty() && parts.iter().all(|part| part.exists()))
        .unwrap_or_else(|| vec![path.into()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_weights_of_the_same_name_and_size_have_another_hash() {
        let folder = tempfile::tempdir().unwrap();
        let [model, memory] = ["model.gguf", "memory"].map(|name| folder.path().join(name));
        fs::write(&model, "weights one").unwrap();
        let one = hash_weights(&model, &memory, &|| true).unwrap();
        assert_eq!(one, blake3::hash(b"weights one"));
        assert_eq!(hash_weights(&model, &memory, &|| true).unwrap(), one);
        fs::remove_file(&model).unwrap();
        fs::write(&model, "weights two").unwrap();
        assert_eq!(hash_weights(&model, &memory, &|| true).unwrap(), blake3::hash(b"weights two"));
    }

    #[test]
    fn reading_ends_when_it_is_told_to() {
        let folder = tempfile::tempdir().unwrap();
        let [model, memory] = ["model.gguf", "memory"].map(|name| folder.path().join(name));
        fs::write(&model, "weights").unwrap();
        assert!(hash_weights(&model, &memory, &|| false).is_err());
        assert_eq!(remembered_weights(&model, &memory), None);
        let hash = hash_weights(&model, &memory, &|| true).unwrap();
        assert_eq!(remembered_weights(&model, &memory), Some(hash));
    }

    #[test]
    fn what_is_remembered_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let [model, memory] = ["model.gguf", "memory"].map(|name| folder.path().join(name));
        fs::write(&model, "weights").unwrap();
        let told = blake3::hash(b"told");
        fs::write(&memory, format!("{} {}\n", stamp(&fs::metadata(&model).unwrap()), told.to_hex())).unwrap();
        assert_eq!(hash_weights(&model, &memory, &|| true).unwrap(), told);
        fs::write(&memory, "noise").unwrap();
        assert_eq!(hash_weights(&model, &memory, &|| true).unwrap(), blake3::hash(b"weights"));
    }

    #[test]
    fn all_parts_of_a_split_model_count() {
        let folder = tempfile::tempdir().unwrap();
        let part = |n| folder.path().join(format!("m-{n:05}-of-00002.gguf"));
        let memory = folder.path().join("memory");
        fs::write(part(1), "one").unwrap();
        fs::write(part(2), "two").unwrap();
        let before = hash_weights(&part(1), &memory, &|| true).unwrap();
        fs::remove_file(part(2)).unwrap();
        fs::write(part(2), "TWO").unwrap();
        assert_ne!(hash_weights(&part(1), &memory, &|| true).unwrap(), before);
    }
}
