//! Where the configuration and the state are looked for.
//!
//! The *state folder* holds what hob writes by itself: the database, and K/V on disk. It is its user's alone.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use directories::ProjectDirs;

use super::fault::ConfigError;

const FILE: &str = "config.toml";

/// The configuration to use: `named` (`--config`), else `HOB_CONFIG`, whether it exists or not; else the first that
/// exists of `$CONFIGURATION_DIRECTORY` (systemd's), the user's config folder and `/etc/hob`.
pub fn locate(named: Option<&Path>) -> Result<PathBuf, ConfigError> {
    let user_folder = project_dirs().map(|folders| folders.config_dir().to_owned());
    let folders: Vec<PathBuf> = user_folder.into_iter().chain([PathBuf::from("/etc/hob")]).collect();
    choose(named, |name| std::env::var_os(name), &folders)
}

/// The state folder: `$STATE_DIRECTORY` (systemd's), else the user's; `None`: a user without a home.
pub(super) fn state_folder() -> Option<PathBuf> {
    systemd_folder(std::env::var_os("STATE_DIRECTORY")).or_else(|| {
        let folders = project_dirs()?;
        Some(folders.state_dir().unwrap_or_else(|| folders.data_local_dir()).to_owned())
    })
}

fn project_dirs() -> Option<ProjectDirs> {
    ProjectDirs::from("", "", "hob")
}

fn choose(
    named: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
    folders: &[PathBuf],
) -> Result<PathBuf, ConfigError> {
    let variable = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(file) = named.map(Path::to_owned).or_else(|| variable("HOB_CONFIG").map(PathBuf::from)) {
        return Ok(file);
    }
    let folders = systemd_folder(variable("CONFIGURATION_DIRECTORY")).into_iter().chain(folders.iter().cloned());
    let files: Vec<PathBuf> = folders.map(|folder| folder.join(FILE)).collect();
    files.iter().find(|file| file.exists()).cloned().ok_or_else(|| {
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        ConfigError::NotFound { looked_for: names.join(", ") }
    })
}

/// systemd joins several folders by colons; the first is the service's own.
fn systemd_folder(value: Option<OsString>) -> Option<PathBuf> {
    std::env::split_paths(&value?).next().filter(|folder| folder.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_wins() {
        let folder = tempfile::tempdir().unwrap();
        let [system, user] = ["system", "user"].map(|name| folder.path().join(name));
        for folder in [&system, &user] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join(FILE), "").unwrap();
        }
        let both = |name: &str| match name {
            "HOB_CONFIG" => Some(OsString::from("/named/by/variable.toml")),
            "CONFIGURATION_DIRECTORY" => Some(std::env::join_paths([&system, &user]).unwrap()),
            _ => None,
        };
        let only_systemd = |name: &str| both(name).filter(|_| name == "CONFIGURATION_DIRECTORY");
        let named = Path::new("named.toml");

        assert_eq!(choose(Some(named), both, std::slice::from_ref(&user)).unwrap(), named);
        assert_eq!(choose(None, both, std::slice::from_ref(&user)).unwrap(), Path::new("/named/by/variable.toml"));
        assert_eq!(choose(None, only_systemd, std::slice::from_ref(&user)).unwrap(), system.join(FILE));
        assert_eq!(choose(None, |_| None, std::slice::from_ref(&user)).unwrap(), user.join(FILE));
    }

    #[test]
    fn nowhere_names_all_places() {
        let error = choose(None, |_| Some(OsString::new()), &["/missing/a".into(), "/missing/b".into()]).unwrap_err();
        insta::assert_snapshot!(error, @"no configuration found, looked for /missing/a/config.toml, /missing/b/config.toml; name one with --config or HOB_CONFIG");
    }
}
