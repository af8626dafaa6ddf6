//! `hob forget`: removes what clients left: K/V in cells, RAM and files, their pins, and what was learnt of their prompts.
//!
//! The running daemon does it; without one, its files are gone through here. What is the house's stays: its profiles and public
//! pins.

use std::io::{self, Write};

use super::ask::{AskError, ask};
use crate::config::Config;
use crate::prompt::forget_files;
use crate::request::{Client, Dialect, Owner};
use crate::snapshots::{Folder, Identity, Secret};

#[derive(Debug, thiserror::Error)]
pub enum ForgetError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("stored K/V in {folder} cannot be removed")]
    Stored { folder: String, source: io::Error },
    #[error("what was learnt cannot be forgotten: {0}")]
    Learnt(String),
    #[error("cannot write")]
    Write(#[from] io::Error),
}

/// `client`: its name, or `all`.
pub fn forget(config: &Config, client: &str, out: &mut impl Write) -> Result<(), ForgetError> {
    let body = serde_json::json!({ "client": client }).to_string();
    match ask(config, "POST", "/hob/v1/forget", body) {
        Ok(answer) => {
            let n = |key: &str| answer[key].as_u64().unwrap_or_default();
            let (segments, cells, pins, answers) = (n("segments"), n("cells"), n("pins"), n("answers"));
            write!(out, "{client}: forgot {cells} cells, {segments} saved segments, {pins} pins")?;
            writeln!(out, "{}", if answers == 0 { String::new() } else { format!("; {answers} answers were ended") })?;
        }
        Err(AskError::NotThere { .. }) => {
            let n_files = forget_stored(config, client)?;
            writeln!(out, "{client}: no daemon runs; removed {n_files} files")?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// The same in the files that a daemon left; the number of those of K/V.
fn forget_stored(config: &Config, client: &str) -> Result<usize, ForgetError> {
    let owner = owner_named(client);
    let folder = &config.cache.folder;
    let mut n_files = 0;
    if folder.is_dir() {
        let failed = |source| ForgetError::Stored { folder: folder.display().to_string(), source };
        // Which model wrote them does not matter: their headers tell whose they are.
        let secret = Secret::load(&config.state_folder).map_err(failed)?;
        let stored = Folder::open(folder.clone(), Identity::new(Vec::new()), secret).map_err(failed)?;
        n_files = stored.forget(owner).map_err(failed)?.len();
    }
    forget_files(&config.layout_file(), &config.pins_file(), owner).map_err(ForgetError::Learnt)?;
    Ok(n_files)
}

/// `None`: all clients.
fn owner_named(client: &str) -> Option<Owner> {
    let client = Client { name: client.to_owned(), salt: None, dialect: Dialect::OpenAi };
    (client.name != "all").then(|| client.owner())
}
