//! Which weights a file holds: the BLAKE3 of all its bytes, read once.
//!
//! A model of gigabytes takes seconds to minutes to read, so its hash is remembered under what changes with its content: device,
//! inode, size, and the times of change. A file that was swapped and dated back is noticed by ctime.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::private::write_whole;

/// Lines of the memory kept: models a house has tried.
const N_LINES_MAX: usize = 64;

/// The hash of the model at `path`, and of its further parts where it is split (`…-00001-of-00003.gguf`). `memory` is a file to
/// remember it in; one that cannot be used costs time only.
pub fn hash_weights(path: &Path, memory: &Path) -> io::Result<blake3::Hash> {
    let parts = parts(path);
    if let [only] = parts.as_slice() {
        return hash_file(only, memory);
    }
    let mut hasher = blake3::Hasher::new();
    for part in &parts {
        hasher.update(hash_file(part, memory)?.as_bytes());
    }
    Ok(hasher.finalize())
}

fn hash_file(path: &Path, memory: &Path) -> io::Result<blake3::Hash> {
    let mut file = File::open(path)?;
    let stamp = stamp(&file.metadata()?);
    let lines = fs::read_to_string(memory).unwrap_or_default();
    let known = lines.lines().find_map(|line| line.strip_prefix(&stamp)?.strip_prefix(' '));
    if let Some(hash) = known.and_then(|hash| blake3::Hash::from_hex(hash).ok()) {
        return Ok(hash);
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&mut file)?;
    let hash = hasher.finalize();
    let kept = lines.lines().take(N_LINES_MAX - 1).map(|line| format!("{line}\n"));
    let text: String = std::iter::once(format!("{stamp} {}\n", hash.to_hex())).chain(kept).collect();
    if let Err(error) = write_whole(memory, |file| file.write_all(text.as_bytes())) {
        tracing::debug!(%error, "the model's hash is not remembered");
    }
    Ok(hash)
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
        let one = hash_weights(&model, &memory).unwrap();
        assert_eq!(one, blake3::hash(b"weights one"));
        assert_eq!(hash_weights(&model, &memory).unwrap(), one);
        fs::remove_file(&model).unwrap();
        fs::write(&model, "weights two").unwrap();
        assert_eq!(hash_weights(&model, &memory).unwrap(), blake3::hash(b"weights two"));
    }

    #[test]
    fn what_is_remembered_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let [model, memory] = ["model.gguf", "memory"].map(|name| folder.path().join(name));
        fs::write(&model, "weights").unwrap();
        let told = blake3::hash(b"told");
        fs::write(&memory, format!("{} {}\n", stamp(&fs::metadata(&model).unwrap()), told.to_hex())).unwrap();
        assert_eq!(hash_weights(&model, &memory).unwrap(), told);
        fs::write(&memory, "noise").unwrap();
        assert_eq!(hash_weights(&model, &memory).unwrap(), blake3::hash(b"weights"));
    }

    #[test]
    fn all_parts_of_a_split_model_count() {
        let folder = tempfile::tempdir().unwrap();
        let part = |n| folder.path().join(format!("m-{n:05}-of-00002.gguf"));
        let memory = folder.path().join("memory");
        fs::write(part(1), "one").unwrap();
        fs::write(part(2), "two").unwrap();
        let before = hash_weights(&part(1), &memory).unwrap();
        fs::remove_file(part(2)).unwrap();
        fs::write(part(2), "TWO").unwrap();
        assert_ne!(hash_weights(&part(1), &memory).unwrap(), before);
    }
}
