//! `hob key new`: makes a client's key, prints it once and puts its hash into the configuration.
//!
//! The rest of the file stays as it was written, comments included. The running daemon learns of the key at its next start.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use toml_edit::{ArrayOfTables, DocumentMut, Item, Table, value};

use crate::config::{KeyHash, is_client_name};
use crate::private::{new_key, write_whole};

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(
        "{0:?} cannot name a client: must be 1 to 64 of a-z, A-Z, 0-9, `.`, `_`, `-`, no address, and none of all, unix, public"
    )]
    Name(String),
    #[error("{name} has a key already; remove its key_hash in {path} to give it another")]
    Exists { name: String, path: String },
    #[error("{path} cannot be read as TOML: {reason}")]
    Toml { path: String, reason: String },
    #[error("{path}: `client` must be a list: write its head as [[client]]")]
    NoList { path: String },
    #[error(
        "{path} cannot be changed; put these lines there and keep the key:\n\n[[client]]\nname = \"{name}\"\nkey_hash = \"{hash}\"\n\nkey: {key}\n"
    )]
    Write { path: String, name: String, hash: String, key: String, source: io::Error },
    #[error("no random numbers")]
    Random(#[source] io::Error),
    #[error("cannot write")]
    Out(#[from] io::Error),
}

/// Gives `name` a key in the configuration `file`.
pub fn new(file: &Path, name: &str, out: &mut impl Write) -> Result<(), KeyError> {
    let path = file.display().to_string();
    if !is_client_name(name) {
        return Err(KeyError::Name(name.to_owned()));
    }
    let unreadable = |reason: String| KeyError::Toml { path: path.clone(), reason };
    let text = fs::read_to_string(file).map_err(|error| unreadable(error.to_string()))?;
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| unreadable(error.message().to_owned()))?;
    let key = new_key().map_err(KeyError::Random)?;
    let hash = KeyHash::of(&key).to_hex();
    give(&mut document, name, &hash, &path)?;
    replace(file, &document.to_string()).map_err(|source| {
        let (path, name, hash, key) = (path.clone(), name.to_owned(), hash, key.clone());
        KeyError::Write { path, name, hash, key, source }
    })?;
    writeln!(out, "{key}")?;
    out.flush()?;
    let mut told = io::stderr();
    writeln!(
        told,
        "This is {name}'s key. It is shown this once; {path} holds its hash. Restart hob to let {name} in."
    )?;
    Ok(())
}

fn give(document: &mut DocumentMut, name: &str, hash: &str, path: &str) -> Result<(), KeyError> {
    let clients = document.entry("client").or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    let clients = clients.as_array_of_tables_mut().ok_or_else(|| KeyError::NoList { path: path.to_owned() })?;
    let place = clients.iter().position(|client| client.get("name").and_then(Item::as_str) == Some(name));
    let place = place.unwrap_or_else(|| {
        let mut client = Table::new();
        client["name"] = value(name);
        clients.push(client);
        clients.len() - 1
    });
    let client = clients.get_mut(place).expect("it was found or made");
    if client.get("key_hash").and_then(Item::as_str).is_some_and(|hash| !hash.is_empty()) {
        return Err(KeyError::Exists { name: name.to_owned(), path: path.to_owned() });
    }
    // Its place in the line, and what is remarked there, stay.
    let remark = client.get("key_hash").and_then(Item::as_value).map(|old| old.decor().clone());
    let mut new = toml_edit::Value::from(hash);
    if let Some(remark) = remark {
        *new.decor_mut() = remark;
    }
    client["key_hash"] = Item::Value(new);
    Ok(())
}

/// Whole or not at all, with the old file's owner and mode: the daemon, which may be another user, reads it.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    // A link stays one.
    let file = fs::canonicalize(file)?;
    let old = fs::metadata(&file)?;
    write_whole(&file, |new: &mut File| {
        new.write_all(text.as_bytes())?;
        let of_new = new.metadata()?;
        if (of_new.uid(), of_new.gid()) != (old.uid(), old.gid()) {
            chown(file.with_extension(crate::private::TEMPORARY), Some(old.uid()), Some(old.gid()))?;
        }
        new.set_permissions(old.permissions())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn run(text: &str, name: &str) -> (String, String) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let mut out = Vec::new();
        let result =
            new(&file, name, &mut out).map_err(|error| error.to_string().replace(&file.display().to_string(), "FILE"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file stays");
        let written = fs::read_to_string(&file).unwrap();
        match result {
            Ok(()) => {
                let key = String::from_utf8(out).unwrap().trim().to_owned();
                assert!(key.starts_with("hob-") && key.len() == 68, "{key}");
                assert!(!written.contains(&key), "the key itself is stored nowhere");
                (written.replace(&KeyHash::of(&key).to_hex(), "HASH"), String::new())
            }
            Err(error) => {
                assert!(out.is_empty());
                (written, error)
            }
        }
    }

    #[test]
    fn the_hash_goes_into_the_file_and_the_rest_stays() {
        let (written, error) = run("# my house\n[model]\npath = \"a.gguf\" # small\n", "home-assistant");
        assert_eq!(error, "");
        insta::assert_snapshot!(written, @r#"
        # my house
        [model]
        path = "a.gguf" # small

        [[client]]
        name = "home-assistant"
        key_hash = "HASH"
        "#);
    }

    #[test]
    fn a_client_that_waits_for_its_key_gets_it() {
        let (written, _) = run("[[client]]\nname = \"a\"\nkey_hash = \"\"   # to come\npriority = \"normal\"\n", "a");
        insta::assert_snapshot!(written, @r#"
        [[client]]
        name = "a"
        key_hash = "HASH"   # to come
        priority = "normal"
        "#);
    }

    #[test]
    fn what_cannot_be_done_changes_nothing() {
        let key = format!("[[client]]\nname = \"a\"\nkey_hash = \"{}\"\n", "0".repeat(64));
        for (text, name, expected) in [
            (&*key, "a", "a has a key already; remove its key_hash in FILE to give it another"),
            ("client = 3", "a", "FILE: `client` must be a list: write its head as [[client]]"),
            ("", "192.168.1.2", "\"192.168.1.2\" cannot name a client: must be"),
            ("", "all", "\"all\" cannot name a client: must be"),
            ("[model", "a", "FILE cannot be read as TOML: "),
        ] {
            let (written, error) = run(text, name);
            assert_eq!(written, text);
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
