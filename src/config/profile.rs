//! Reads what the `[[profile]]`s name: system text, tools, documents.
//!
//! A *text* is a file in UTF-8, of bounded size. Order is what the cache lives on: tools keep the file's order and, each,
//! its very letters; documents stand in the order of their globs and by name within one.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;

use super::fault::{ConfigError, Faults};
use super::{Config, ProfileFiles};
use crate::prompt::{Document, Profile};

/// Bytes of one text. A million tokens are about 4 MiB of English: more cannot stand in any context.
const TEXT_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("is not a file")]
    NotAFile,
    #[error("has {n_bytes} bytes; must be at most {TEXT_BYTES_MAX}")]
    TooLarge { n_bytes: u64 },
    #[error("is not UTF-8: line {line} holds other bytes; save it as UTF-8")]
    NotUtf8 { line: usize },
}

/// Reads all profiles. Each is complete, or the error says what is wrong in all of them.
pub fn read_profiles(config: &Config) -> Result<Vec<Profile>, ConfigError> {
    let mut faults = Faults::of(&config.file);
    let numbered = config.profiles.iter().enumerate();
    let profiles = numbered
        .map(|(index, files)| Reader { config, key: format!("profile[{index}]"), faults: &mut faults }.profile(files))
        .collect();
    if faults.found.is_empty() { Ok(profiles) } else { Err(ConfigError::Faults(faults.found)) }
}

/// The text of the file at `path`, without a byte order mark.
pub fn read_text(path: &Path) -> Result<String, TextError> {
    // Asked before opening: to open a pipe would wait for its writer.
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(TextError::NotAFile);
    }
    let mut bytes = Vec::new();
    // One byte more than allowed, since a file may have grown meanwhile.
    File::open(path)?.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    let n_bytes = metadata.len().max(bytes.len() as u64);
    if n_bytes > TEXT_BYTES_MAX {
        return Err(TextError::TooLarge { n_bytes });
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        TextError::NotUtf8 { line: valid.iter().filter(|byte| **byte == b'\n').count() + 1 }
    })?;
    Ok(match text.strip_prefix('\u{feff}') {
        Some(text) => text.to_owned(),
        None => text,
    })
}

/// Reads the files of one profile.
struct Reader<'a> {
    config: &'a Config,
    key: String,
    faults: &'a mut Faults,
}

impl Reader<'_> {
    fn profile(mut self, files: &ProfileFiles) -> Profile {
        Profile {
            name: files.name.clone(),
            system: files.system.as_deref().and_then(|path| self.text("system", path)).unwrap_or_default(),
            tools: files.tools.as_deref().map(|path| self.tools(path)).unwrap_or_default(),
            documents: self.documents(&files.documents),
            max_tokens: files.max_tokens,
            thinking: files.thinking,
            adapters: files.adapters,
        }
    }

    fn text(&mut self, key: &str, path: &Path) -> Option<String> {
        read_text(path).map_err(|error| self.fault(key, path, &error.to_string())).ok()
    }

    /// The JSON text of each tool definition in the array at `path`.
    fn tools(&mut self, path: &Path) -> Vec<String> {
        let Some(text) = self.text("tools", path) else { return Vec::new() };
        let definitions: Vec<Box<RawValue>> = match serde_json::from_str(&text) {
            Ok(definitions) => definitions,
            Err(error) => {
                self.fault("tools", path, &format!("must be a JSON array of tool definitions: {error}"));
                return Vec::new();
            }
        };
        let mut names = HashSet::new();
        for (index, definition) in definitions.iter().enumerate() {
            match tool_name(definition.get()) {
                Err(problem) => self.fault("tools", path, &format!("[{index}] {problem}")),
                Ok(name) if names.contains(&name) => {
                    self.fault("tools", path, &format!("[{index}] defines {name:?} again; each name must be new"));
                }
                Ok(name) => {
                    names.insert(name);
                }
            }
        }
        definitions.iter().map(|definition| definition.get().to_owned()).collect()
    }

    fn documents(&mut self, globs: &[String]) -> Vec<Document> {
        let mut seen = HashSet::new();
        let mut documents = Vec::new();
        for glob in globs {
            for path in self.matches(glob) {
                // The same file by another name is the same file.
                if !seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
                    continue;
                }
                let title = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
                documents.extend(self.text("documents", &path).map(|text| Document { title, text }));
            }
        }
        documents
    }

    /// The files that `glob` names, sorted. Hidden ones need a glob that begins with a dot, too: editors leave theirs there.
    fn matches(&mut self, glob: &str) -> Vec<PathBuf> {
        let folder = glob::Pattern::escape(&self.config.folder.to_string_lossy());
        let options = glob::MatchOptions { require_literal_leading_dot: true, ..Default::default() };
        let key = format!("{}.documents", self.key);
        // As with every path, an absolute one stands for itself.
        let absolute = Path::new(&folder).join(glob);
        let paths = match glob::glob_with(&absolute.to_string_lossy(), options) {
            Ok(paths) => paths,
            Err(error) => {
                self.faults.value(key, glob, format!("is not a pattern of file names: {}", error.msg));
                return Vec::new();
            }
        };
        let mut files = Vec::new();
        for path in paths {
            match path {
                Ok(path) if path.is_dir() => {}
                Ok(path) => files.push(path),
                Err(error) => self.fault("documents", error.path(), &format!("cannot be read: {}", error.error())),
            }
        }
        files.sort();
        if files.is_empty() {
            let folder = self.config.folder.display();
            self.faults.value(key, glob, format!("no file has such a name (looked from {folder})"));
        }
        files
    }

    fn fault(&mut self, key: &str, path: &Path, problem: &str) {
        self.faults.value(format!("{}.{key}", self.key), path.to_string_lossy().as_ref(), problem);
    }
}

/// The name that `definition` gives to its tool; else what is wrong with it.
fn tool_name(definition: &str) -> Result<String, String> {
    let value: serde_json::Value = serde_json::from_str(definition).map_err(|error| error.to_string())?;
    let name = value.pointer("/function/name").and_then(|name| name.as_str());
    match name {
        Some(name) if !name.is_empty() && value["type"] == "function" => Ok(name.to_owned()),
        _ => Err(r#"must look like {"type": "function", "function": {"name": "…", …}}"#.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;

    /// A folder with these files, and the profile that `profile` configures in it.
    fn house(files: &[(&str, &[u8])], profile: &str) -> (TempDir, Result<Vec<Profile>, ConfigError>) {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        let file = folder.path().join("config.toml");
        let head = "telemetry.path = \"hob.sqlite\"\n[[profile]]\nname = \"house\"\n";
        std::fs::write(&file, format!("{head}{profile}")).unwrap();
        let profiles = read_profiles(&Config::load(&file).unwrap());
        (folder, profiles)
    }

    /// The error's lines, without the folder of the day.
    fn faults(files: &[(&str, &[u8])], profile: &str) -> String {
        let (folder, profiles) = house(files, profile);
        profiles.unwrap_err().to_string().replace(&folder.path().display().to_string(), "HOME")
    }

    fn titles(profile: &Profile) -> Vec<&str> {
        profile.documents.iter().map(|document| document.title.as_str()).collect()
    }

    #[test]
    fn tools_keep_their_letters_and_their_order() {
        let tools = "[ {\"type\":\"function\", \"function\":{\"name\":\"z\",\"b\":1.0,\"a\":\"\\u00e9\"}},\n\
            {\"function\": {\"name\": \"a\"}, \"type\": \"function\"}]";
        let (_folder, profiles) = house(&[("tools.json", tools.as_bytes())], "tools = \"tools.json\"");
        assert_eq!(
            profiles.unwrap()[0].tools,
            [
                "{\"type\":\"function\", \"function\":{\"name\":\"z\",\"b\":1.0,\"a\":\"\\u00e9\"}}",
                "{\"function\": {\"name\": \"a\"}, \"type\": \"function\"}",
            ]
        );
    }

    #[test]
    fn documents_stand_in_the_order_of_globs_then_names_each_once() {
        let names = ["docs/b.md", "docs/a.md", "docs/.a.md.swp", "docs/sub.md/x.txt", "calendar.md", "docs/z.md"];
        let files = names.map(|name| (name, name.as_bytes()));
        let profile = r#"documents = ["docs/z.md", "./docs/*.md", "calendar.md", "docs/[ab].md"]"#;
        let (_folder, profiles) = house(&files, profile);
        let profiles = profiles.unwrap();
        assert_eq!(titles(&profiles[0]), ["z", "a", "b", "calendar"]);
        assert_eq!(profiles[0].documents[1].text, "docs/a.md");
    }

    #[test]
    fn a_folder_whose_name_looks_like_a_pattern_is_taken_by_its_letters() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("[odd]*");
        std::fs::create_dir(&odd).unwrap();
        std::fs::write(odd.join("a.md"), "a").unwrap();
        let file = odd.join("config.toml");
        std::fs::write(&file, "[[profile]]\nname = \"house\"\ndocuments = [\"*.md\"]").unwrap();
        let profiles = read_profiles(&Config::examine(&file).0).unwrap();
        assert_eq!(titles(&profiles[0]), ["a"]);
    }

    #[test]
    fn a_byte_order_mark_is_no_text() {
        let (_folder, profiles) = house(&[("house.md", b"\xef\xbb\xbfBe kind.\r\n")], "system = \"house.md\"");
        assert_eq!(profiles.unwrap()[0].system, "Be kind.\r\n");
    }

    #[test]
    fn every_fault_names_key_and_path() {
        let large = vec![b'x'; TEXT_BYTES_MAX as usize + 1];
        let files: [(&str, &[u8]); 4] = [
            ("utf16.md", b"\xff\xfeB\0e\0"),
            ("latin1.md", b"fine\nF\xfcr alle"),
            ("large.md", &large),
            ("tools.json", b"{}"),
        ];
        let profile = r#"
            system = "missing.md"
            tools = "tools.json"
            documents = ["utf16.md", "latin1.md", "large.md", "nothing/*.md", "a***"]
        "#;
        insta::assert_snapshot!(faults(&files, profile), @r#"
        HOME/config.toml: profile[0].system = "HOME/missing.md": cannot be read: No such file or directory (os error 2)
        HOME/config.toml: profile[0].tools = "HOME/tools.json": must be a JSON array of tool definitions: invalid type: map, expected a sequence at line 1 column 0
        HOME/config.toml: profile[0].documents = "HOME/utf16.md": is not UTF-8: line 1 holds other bytes; save it as UTF-8
        HOME/config.toml: profile[0].documents = "HOME/latin1.md": is not UTF-8: line 2 holds other bytes; save it as UTF-8
        HOME/config.toml: profile[0].documents = "HOME/large.md": has 4194305 bytes; must be at most 4194304
        HOME/config.toml: profile[0].documents = "nothing/*.md": no file has such a name (looked from HOME)
        HOME/config.toml: profile[0].documents = "a***": is not a pattern of file names: wildcards are either regular `*` or recursive `**`
        "#);
    }

    #[test]
    fn tools_that_are_no_definitions_are_refused() {
        let deep = format!("[{}{}]", "[".repeat(100_000), "]".repeat(100_000));
        for tools in ["", "[1, 2", "null", "[{}] x", &deep] {
            let (_folder, profiles) = house(&[("tools.json", tools.as_bytes())], "tools = \"tools.json\"");
            assert!(profiles.is_err(), "{tools:.20}");
        }
        let tools = br#"[{"name": "bare"}, {"type": "function", "function": {"name": "on"}},
            {"type": "function", "function": {"name": "on"}}, 3, {"type": "function", "function": {"name": ""}}]"#;
        insta::assert_snapshot!(faults(&[("tools.json", tools)], "tools = \"tools.json\""), @r#"
        HOME/config.toml: profile[0].tools = "HOME/tools.json": [0] must look like {"type": "function", "function": {"name": "…", …}}
        HOME/config.toml: profile[0].tools = "HOME/tools.json": [2] defines "on" again; each name must be new
        HOME/config.toml: profile[0].tools = "HOME/tools.json": [3] must look like {"type": "function", "function": {"name": "…", …}}
        HOME/config.toml: profile[0].tools = "HOME/tools.json": [4] must look like {"type": "function", "function": {"name": "…", …}}
        "#);
    }

    #[test]
    fn a_text_of_the_largest_size_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large.md");
        std::fs::write(&path, vec![b'x'; TEXT_BYTES_MAX as usize]).unwrap();
        assert_eq!(read_text(&path).unwrap().len() as u64, TEXT_BYTES_MAX);
    }

    #[test]
    fn a_folder_is_not_a_text() {
        assert!(matches!(read_text(Path::new("/")), Err(TextError::NotAFile)));
    }
}
