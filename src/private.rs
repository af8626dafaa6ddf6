//! Files and folders of this user alone: folders 0700, files 0600, each file whole or not there.
//!
//! What hob writes down is as private as the conversations it comes from. A *whole* file is written under another name, synced and
//! renamed, and its folder is synced: a crash at any moment leaves the old file or the new one, and at most a temporary one
//! beside it. What stands in the files is not known here.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// The ending of a file that is not whole yet.
pub const TEMPORARY: &str = "tmp";

/// What has been done when a write is interrupted; tests kill the process at each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteStep {
    Created,
    /// Half of the bytes are handed to the kernel; told by who writes them.
    Begun,
    Written,
    Synced,
    Renamed,
    FolderSynced,
}

/// Makes `folder` and what lacks above it. One that exists stays as it is.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Puts what `write` writes into the place of `path`, whose folder exists.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    write_in_steps(path, &mut |_| (), |file, _| write(file))
}

/// Like `write_whole`; `after` is told of each step.
pub fn write_in_steps(
    path: &Path,
    after: &mut dyn FnMut(WriteStep),
    write: impl FnOnce(&mut File, &mut dyn FnMut(WriteStep)) -> io::Result<()>,
) -> io::Result<()> {
    let temporary = path.with_extension(TEMPORARY);
    let written = write_temporary(&temporary, after, write).and_then(|()| {
        fs::rename(&temporary, path)?;
        after(WriteStep::Renamed);
        File::open(folder_of(path))?.sync_all()?;
        after(WriteStep::FolderSynced);
        Ok(())
    });
    if written.is_err() {
        // Half a file is worth nothing; that it cannot be removed either says nothing new.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// 32 random bytes, from the kernel.
pub fn random_bytes() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A new key: `hob-` and 64 hexadecimal digits.
pub fn new_key() -> io::Result<String> {
    Ok(random_bytes()?.iter().fold("hob-".to_owned(), |key, byte| format!("{key}{byte:02x}")))
}

/// The key in the file `path`; made there, with its folder, if there is none.
pub fn key_text(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Ok(text) if text.trim().is_empty() => {}
        Ok(text) => return Ok(text.trim().to_owned()),
        Err(error) => return Err(error),
    }
    let key = new_key()?;
    create_folder(folder_of(path))?;
    write_whole(path, |file| writeln!(file, "{key}"))?;
    Ok(key)
}

fn write_temporary(
    path: &Path,
    after: &mut dyn FnMut(WriteStep),
    write: impl FnOnce(&mut File, &mut dyn FnMut(WriteStep)) -> io::Result<()>,
) -> io::Result<()> {
    // One that a crash left behind might have another mode.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    after(WriteStep::Created);
    write(&mut file, after)?;
    after(WriteStep::Written);
    file.sync_all()?;
    after(WriteStep::Synced);
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_folder_is_its_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("a/hob");
        create_folder(&state).unwrap();
        create_folder(&state).unwrap();
        assert_eq!(mode(&state), 0o700);
    }

    #[test]
    fn a_file_is_its_users_alone_whatever_a_crash_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let left = path.with_extension(TEMPORARY);
        fs::write(&left, "half").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o666)).unwrap();
        write_whole(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"new".to_vec(), 0o600));
        assert!(!left.exists());
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_file_and_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let failed = write_whole(&path, |file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
