//! The secret by which this house's own K/V files are told from others.
//!
//! It is made once and kept in the state folder, or comes as a systemd credential. A lost one costs the files that were written
//! with it.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::container::Secret;
use crate::private::{create_folder, random_bytes, write_whole};

/// The credential's name: `LoadCredentialEncrypted=hob-kv-secret`.
const CREDENTIAL: &str = "hob-kv-secret";
const FILE: &str = "kv-secret";

impl Secret {
    /// From `$CREDENTIALS_DIRECTORY`, else from `state_folder`; made there if there is none.
    pub fn load(state_folder: &Path) -> io::Result<Secret> {
        match std::env::var_os("CREDENTIALS_DIRECTORY").map(|folder| Path::new(&folder).join(CREDENTIAL)) {
            // Whatever its form, as a key it has 32 bytes.
            Some(credential) if credential.exists() => Ok(Secret(*blake3::hash(&fs::read(credential)?).as_bytes())),
            _ => Secret::from_folder(state_folder),
        }
    }

    fn from_folder(folder: &Path) -> io::Result<Secret> {
        let path = folder.join(FILE);
        match fs::read(&path).map(<[u8; 32]>::try_from) {
            Ok(Ok(secret)) => return Ok(Secret(secret)),
            Ok(Err(bytes)) => tracing::warn!(path = %path.display(), n_bytes = bytes.len(), "no secret: made anew"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        create_folder(folder)?;
        let secret = random_bytes()?;
        write_whole(&path, |file| file.write_all(&secret))?;
        Ok(Secret(secret))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_made_once_and_is_its_users_alone() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("hob");
        let secret = Secret::from_folder(&state).unwrap();
        assert_eq!(Secret::from_folder(&state).unwrap().0, secret.0);
        assert_ne!(secret.0, [0; 32]);
        let mode = fs::metadata(state.join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "no temporary file stays");
    }

    #[test]
    fn half_a_secret_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "short").unwrap();
        let secret = Secret::from_folder(folder.path()).unwrap();
        assert_eq!(fs::read(folder.path().join(FILE)).unwrap(), secret.0);
    }
}
